from __future__ import annotations

import pytest

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}


async def test_a_chat_completion_has_openais_shape(serve):
    async with serve() as served:
        reply = await served.http.post("/v1/chat/completions", json={**CHAT, "model": "alias"})
    body = reply.json()
    assert reply.status_code == 200
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "alias")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"content": "abc", "role": "assistant", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    num_prompt = len("<user>Hi\n<assistant>")
    assert body["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": 3,
        "total_tokens": num_prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 3,
            "reasoning_tokens": 0,
        },
    }


@pytest.mark.parametrize(
    ("prompt", "num_choices", "num_prompt_tokens"),
    [("abc", 1, 3), (["abc", "de"], 2, 5), ([1, 2, 3, 4], 1, 4), ([[1, 2], [3], [4, 5, 6]], 3, 6)],
)
async def test_completions_take_every_form_of_prompt(serve, prompt, num_choices, num_prompt_tokens):
    async with serve() as served:
        body = (await served.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(num_choices))
    assert all(choice["text"] == "ab" and choice["finish_reason"] == "length" for choice in body["choices"])
    assert body["usage"]["prompt_tokens"] == num_prompt_tokens
    assert body["usage"]["completion_tokens"] == 2 * num_choices


async def test_several_prompts_times_n_keep_their_order(serve):
    async with serve() as served:
        ask = {"prompt": ["x", "y"], "n": 2, "max_tokens": 1, "echo": True}
        body = (await served.http.post("/v1/completions", json=ask)).json()
    assert [choice["text"] for choice in body["choices"]] == ["xa", "xb", "ya", "yb"]
    assert len({asked.request_id for asked in served.client.asked}) == 2


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ([], "prompt must be"),
        ([[]], "empty"),
        ([1, "a"], "prompt must be"),
        ([True], "prompt must be"),
        ([[1], ["a"]], "integers"),
        ([-1], "vocabulary"),
        ([257], "vocabulary"),
        ([[2**63]], "vocabulary"),
        ({"a": 1}, "prompt must be"),
        (None, "prompt must be"),
        (["a"] * 129, "at most 128"),
    ],
)
async def test_bad_prompts_are_refused_by_name(serve, prompt, words):
    async with serve() as served:
        reply = await served.http.post("/v1/completions", json={"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "prompt"
    assert words in reply.json()["error"]["message"]
    assert not served.client.asked


async def test_prompts_over_the_context_are_refused(serve):
    async with serve() as served:
        reply = await served.http.post("/v1/completions", json={"prompt": "x" * 5000})
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")
        ask = {"prompt": "x" * 5000, "truncate_prompt_tokens": -1}
        assert (await served.http.post("/v1/completions", json=ask)).status_code == 200
        assert len(served.client.asked[-1].ids) == 4095
        ask = {"prompt": "abcdef", "truncate_prompt_tokens": 2}
        await served.http.post("/v1/completions", json=ask)
        assert served.client.asked[-1].ids == list(b"ef")
        ask = {"prompt": "abcdef", "truncate_prompt_tokens": 0}
        assert (await served.http.post("/v1/completions", json=ask)).json()["error"][
            "param"
        ] == "truncate_prompt_tokens"


async def test_unknown_models_are_404(serve):
    async with serve() as served:
        for path, ask in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a"})):
            reply = await served.http.post(path, json={**ask, "model": "other"})
            assert reply.status_code == 404
            assert reply.json()["error"]["param"] == "model"
            assert reply.json()["error"]["code"] == "model_not_found"


async def test_models_are_listed_and_found(serve):
    async with serve() as served:
        listed = (await served.http.get("/v1/models")).json()
        assert [card["id"] for card in listed["data"]] == ["fake-model", "alias"]
        assert listed["data"][1]["root"] == "fake-model"
        assert listed["data"][0]["max_model_len"] == 4096
        assert (await served.http.get("/v1/models/alias")).json()["id"] == "alias"
        assert (await served.http.get("/v1/models/other")).status_code == 404


async def test_model_names_may_have_slashes(serve, make_client):
    async with serve(make_client(served_model_names=("org/model",))) as served:
        assert (await served.http.get("/v1/models/org/model")).json()["id"] == "org/model"


async def test_chat_logprobs(serve):
    async with serve() as served:
        ask = {**CHAT, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
        body = (await served.http.post("/v1/chat/completions", json=ask)).json()
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -0.5, [97])
    assert [top["token"] for top in entry["top_logprobs"]] == ["a", "A"]


async def test_completion_logprobs_with_echo_cover_the_prompt(serve):
    async with serve() as served:
        ask = {"prompt": "xyz", "max_tokens": 2, "logprobs": 1, "echo": True}
        choice = (await served.http.post("/v1/completions", json=ask)).json()["choices"][0]
    assert choice["text"] == "xyzab"
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2, 3, 4],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "tokens": ["x", "y", "z", "a", "b"],
        "top_logprobs": [None, {"y": -0.5}, {"z": -0.5}, {"a": -0.5}, {"b": -0.5}],
    }


async def test_prompt_logprobs(serve):
    async with serve() as served:
        ask = {"prompt": "xy", "max_tokens": 1, "prompt_logprobs": 1}
        choice = (await served.http.post("/v1/completions", json=ask)).json()["choices"][0]
        assert choice["prompt_logprobs"] == [None, {"121": {"logprob": -0.5, "rank": 1, "decoded_token": "y"}}]
        reply = await served.http.post("/v1/completions", json={**ask, "stream": True})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt_logprobs")
        body = (await served.http.post("/v1/chat/completions", json={**CHAT, "prompt_logprobs": 0})).json()
        assert body["prompt_logprobs"][0] is None
        assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


async def test_token_ids_are_returned_when_asked(serve):
    async with serve() as served:
        ask = {"prompt": [5, 6], "max_tokens": 2, "return_token_ids": True}
        choice = (await served.http.post("/v1/completions", json=ask)).json()["choices"][0]
        assert (choice["prompt_token_ids"], choice["token_ids"]) == ([5, 6], [97, 98])
        body = (await served.http.post("/v1/chat/completions", json={**CHAT, "return_token_ids": True})).json()
        assert body["choices"][0]["token_ids"] == [97, 98, 99]
        assert body["prompt_token_ids"] == list(b"<user>Hi\n<assistant>")
        ask = {**CHAT, "logprobs": True, "return_tokens_as_token_ids": True}
        body = (await served.http.post("/v1/chat/completions", json=ask)).json()
        assert body["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:97"


async def test_metrics_of_a_request_are_reported_when_asked(serve):
    async with serve() as served:
        ask = {**CHAT, "speculation": {"max_tokens": 0, "metrics": True}}
        body = (await served.http.post("/v1/chat/completions", json=ask)).json()
        assert served.client.asked[-1].params.max_draft_tokens == 0
        assert body["metrics"]["speculative_decoding"]["num_draft_tokens"] == 6
        assert body["metrics"]["speculative_decoding"]["draft_acceptance_rate"] == 0.5
        reply = await served.http.post("/v1/chat/completions", json={**ask, "n": 2})
        assert reply.json()["error"]["param"] == "speculation"


async def test_request_ids_salt_and_priority_are_passed_on(serve):
    async with serve() as served:
        ask = {**CHAT, "request_id": "mine-1", "cache_salt": "tenant", "priority": -3}
        body = (await served.http.post("/v1/chat/completions", json=ask)).json()
        asked = served.client.asked[-1]
        assert body["id"] == "chatcmpl-mine-1"
        assert (asked.salt, asked.priority) == ("tenant", -3)
        for name, value in (("cache_salt", "a/b"), ("cache_salt", ""), ("request_id", "a b"), ("priority", 2**40)):
            reply = await served.http.post("/v1/chat/completions", json={**CHAT, name: value})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


async def test_ignored_fields_are_named_in_a_header(serve):
    async with serve() as served:
        ask = {**CHAT, "user": "me", "made_up": 1, "store": True, "tools": [], "best_of": 1, "x\r\ny": 2}
        reply = await served.http.post("/v1/chat/completions", json=ask)
        assert reply.status_code == 200
        assert reply.headers["x-threefold-ignored-fields"] == "made_up, store"


async def test_an_engine_fault_is_a_500_without_paths(serve):
    async with serve() as served:
        served.client.fault_after = 1
        reply = await served.http.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 500
        assert "/usr" not in reply.text
        assert "0x7f" not in reply.text
        served.client.fault_after = None
        assert (await served.http.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_overload_says_when_to_come_back(serve):
    for status in (503, 429):
        async with serve(overload_status=status) as served:
            served.client.is_full = True
            for stream in (False, True):
                reply = await served.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
                assert reply.status_code == status
                assert reply.headers["retry-after"] == "2"
                assert reply.headers["retry-after-ms"] == "1500"
                assert reply.json()["error"]["type"] == "overloaded_error"


async def test_tokenize_and_detokenize(serve):
    async with serve() as served:
        reply = (await served.http.post("/tokenize", json={"prompt": "héy", "return_token_strs": True})).json()
        assert reply["tokens"] == list("héy".encode())
        assert (reply["count"], reply["max_model_len"], len(reply["token_strs"])) == (4, 4096, 4)
        back = await served.http.post("/detokenize", json={"tokens": reply["tokens"]})
        assert back.json() == {"prompt": "héy"}
        chat = (await served.http.post("/tokenize", json={"messages": CHAT["messages"]})).json()
        assert bytes(chat["tokens"]) == b"<user>Hi\n<assistant>"
        assert (await served.http.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
        for tokens in ([257], [-1], ["a"], "a", [True]):
            reply = await served.http.post("/detokenize", json={"tokens": tokens})
            assert reply.status_code == 400
            assert reply.json()["error"]["param"].startswith("tokens")


async def test_while_draining_nothing_new_is_taken(serve):
    async with serve() as served:
        served.app.state.server.is_draining = True
        reply = await served.http.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 503
        assert "retry-after" in reply.headers
        assert (await served.http.get("/health")).status_code == 503
