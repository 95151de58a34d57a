from __future__ import annotations

import pytest

from threefold.server.refusals import UNBUILT, refuse_unbuilt

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {}}}),
        ("structured_outputs", {"regex": "a"}),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("guided_choice", ["a"]),
        ("guided_grammar", "x"),
        ("tools", [TOOL]),
        ("functions", [{"name": "f"}]),
        ("best_of", 2),
        ("use_beam_search", True),
        ("suffix", "end"),
        ("prompt_embeds", "AAAA"),
        ("logits_processors", ["x"]),
        ("vllm_xargs", {"a": 1}),
        ("modalities", ["audio"]),
        ("prediction", {"type": "content", "content": "x"}),
    ],
)
async def test_what_is_known_and_not_built_is_refused_by_name(serve, field, value):
    async with serve() as served:
        for path, ask in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a"})):
            reply = await served.http.post(path, json={**ask, field: value})
            assert reply.status_code == 501
            assert reply.json()["error"]["param"] == field
            assert field in reply.json()["error"]["message"] or field == "tools"
            assert reply.headers["x-should-retry"] == "false"


def test_values_that_ask_for_nothing_pass():
    nothing = dict.fromkeys(UNBUILT)
    nothing |= {"response_format": {"type": "text"}, "best_of": 1, "tools": [TOOL], "tool_choice": "none"}
    assert refuse_unbuilt(nothing) == []


async def test_tool_choice_without_tools_is_a_contradiction(serve):
    async with serve() as served:
        reply = await served.http.post("/v1/chat/completions", json={**CHAT, "tool_choice": "required"})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
        ask = {**CHAT, "tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": True}
        assert (await served.http.post("/v1/chat/completions", json=ask)).status_code == 200
