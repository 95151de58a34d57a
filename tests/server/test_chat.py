from __future__ import annotations

import pytest


def ask(content, **more):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **more}


async def prompt_of(served, body):
    reply = await served.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return bytes(served.client.asked[-1].ids).decode()


async def test_text_parts_are_joined(serve):
    async with serve() as served:
        parts = [{"type": "text", "text": "one"}, "two", {"type": "refusal", "refusal": "no"}]
        assert await prompt_of(served, ask(parts)) == "<user>one\ntwo\nno\n<assistant>"
        assert await prompt_of(served, ask(None)) == "<user>\n<assistant>"


@pytest.mark.parametrize(
    ("part", "status"),
    [
        ({"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, 501),
        ({"type": "input_audio", "input_audio": {}}, 501),
        ({"type": "file"}, 501),
        ({"type": 3}, 501),
        ({"type": "text"}, 400),
        ({"type": "text", "text": 1}, 400),
    ],
)
async def test_other_parts_are_refused(serve, part, status):
    async with serve() as served:
        reply = await served.http.post("/v1/chat/completions", json=ask([part]))
    assert reply.status_code == status
    assert reply.json()["error"]["param"] == "messages.0.content"
    if status == 501:
        assert reply.headers["x-should-retry"] == "false"


async def test_the_last_message_can_be_continued(serve):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "}]
    async with serve() as served:
        body = {"messages": messages, "max_tokens": 1, "continue_final_message": True}
        assert await prompt_of(served, body) == "<user>Hi\n<assistant>Well, "
        body["add_generation_prompt"] = True
        reply = await served.http.post("/v1/chat/completions", json=body)
        assert reply.json()["error"]["param"] == "continue_final_message"
        body = {"messages": messages, "max_tokens": 1, "add_generation_prompt": False}
        assert await prompt_of(served, body) == "<user>Hi\n<assistant>Well, \n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "add_generation_prompt", "eos_token"])
async def test_reserved_template_variables_are_refused(serve, path, name):
    async with serve() as served:
        reply = await served.http.post(path, json=ask("a", chat_template_kwargs={name: "{{ 1 }}"}))
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "chat_template_kwargs"
        reply = await served.http.post(path, json=ask("a", chat_template="{{ 1 }}"))
        assert reply.status_code == 501


async def test_template_variables_reach_the_template(serve, make_client):
    source = (
        "{% if enable_thinking is defined and enable_thinking %}think{% else %}plain{% endif %}{{ reasoning_effort }}"
    )
    async with serve(make_client(source)) as served:
        assert await prompt_of(served, ask("a")) == "plain"
        body = ask("a", chat_template_kwargs={"enable_thinking": True, "unknown": 1}, reasoning_effort="low")
        assert await prompt_of(served, body) == "thinklow"


async def test_past_tool_calls_are_shown_as_objects(serve, make_client):
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.x }}{% endfor %}{% endfor %}|"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 7}'}}
    async with serve(make_client(source)) as served:
        messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "ok"}]
        assert await prompt_of(served, {"messages": messages, "max_tokens": 1}) == "7|"
        for bad in ("x", [1], [{"function": {"name": "f", "arguments": "{"}}]):
            messages[0]["tool_calls"] = bad
            reply = await served.http.post("/v1/chat/completions", json={"messages": messages})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages.0.tool_calls")


async def test_without_a_template_the_way_out_is_named(serve, make_client):
    async with serve(make_client(None)) as served:
        reply = await served.http.post("/v1/chat/completions", json=ask("a"))
        assert reply.status_code == 400
        assert "--chat-template" in reply.json()["error"]["message"]
        assert "/v1/completions" in reply.json()["error"]["message"]
        assert (await served.http.post("/v1/completions", json={"prompt": "a"})).status_code == 200


async def test_an_empty_prompt_is_refused(serve, make_client):
    async with serve(make_client("{{ '' }}")) as served:
        assert (await served.http.post("/v1/chat/completions", json=ask("a"))).json()["error"]["param"] == "messages"
