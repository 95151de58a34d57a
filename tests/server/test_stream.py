from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest

from threefold.errors import EngineDeadError

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}


def frames_of(text):
    """Data of each server-sent event; splits as the simplest clients do."""
    assert text.endswith("\n\n")
    events = text[:-2].split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    assert events[-1] == "data: [DONE]"
    return [json.loads(event[6:]) for event in events[:-1]]


async def frames(served, path, ask):
    reply = await served.http.post(path, json=ask)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    return frames_of(reply.text)


async def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason(serve):
    async with serve() as served:
        chunks = await frames(served, "/v1/chat/completions", CHAT)
    assert chunks[0]["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:]] == ["a", "b", "c"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)


async def test_usage_comes_last_when_asked(serve):
    async with serve() as served:
        ask = {**CHAT, "stream_options": {"include_usage": True}}
        chunks = await frames(served, "/v1/chat/completions", ask)
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 3
        assert not any("usage" in chunk for chunk in chunks[:-1])
        ask = {"prompt": "a", "stream": True, "max_tokens": 2}
        ask |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        chunks = await frames(served, "/v1/completions", ask)
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 2]


async def test_stream_options_need_a_stream(serve):
    async with serve() as served:
        ask = {**CHAT, "stream": False, "stream_options": {"include_usage": True}}
        reply = await served.http.post("/v1/chat/completions", json=ask)
        assert reply.json()["error"]["param"] == "stream_options"


async def test_several_answers_and_prompts_share_a_stream(serve):
    async with serve() as served:
        ask = {"prompt": ["x", "y"], "n": 2, "max_tokens": 2, "stream": True, "echo": True}
        texts = ["", "", "", ""]
        for chunk in await frames(served, "/v1/completions", ask):
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        assert texts == ["xab", "xbc", "yab", "ybc"]
        chunks = await frames(served, "/v1/chat/completions", {**CHAT, "n": 2})
        roles = [chunk["choices"][0]["index"] for chunk in chunks if "role" in chunk["choices"][0]["delta"]]
        assert sorted(roles) == [0, 1]


async def test_streamed_logprobs_carry_offsets_on(serve):
    async with serve() as served:
        ask = {"prompt": "xy", "max_tokens": 2, "stream": True, "logprobs": 0, "echo": True}
        columns = [chunk["choices"][0]["logprobs"] for chunk in await frames(served, "/v1/completions", ask)]
        assert [offset for column in columns for offset in column["text_offset"]] == [0, 1, 2, 3]
        ask = {**CHAT, "logprobs": True, "top_logprobs": 1}
        chunks = await frames(served, "/v1/chat/completions", ask)
        assert [chunk["choices"][0]["logprobs"]["content"][0]["token"] for chunk in chunks[1:]] == ["a", "b", "c"]


async def test_stream_interval_gathers_tokens(serve):
    async with serve() as served:
        ask = {"prompt": "x", "max_tokens": 8, "stream": True, "stream_interval": 3}
        chunks = await frames(served, "/v1/completions", ask)
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "bcd", "efg", "h"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_token_ids_and_metrics_in_a_stream(serve):
    async with serve() as served:
        ask = {**CHAT, "return_token_ids": True, "speculation": {"metrics": True}}
        chunks = await frames(served, "/v1/chat/completions", ask)
        assert bytes(chunks[0]["prompt_token_ids"]) == b"<user>Hi\n<assistant>"
        assert [chunk["choices"][0]["token_ids"] for chunk in chunks[1:-1]] == [[97], [98], [99]]
        assert chunks[-1]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] == 3


async def test_a_fault_before_the_first_piece_keeps_its_status(serve):
    async with serve() as served:
        served.client.fault_after = 0
        reply = await served.http.post("/v1/chat/completions", json=CHAT)
        assert reply.status_code == 500
        assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("fault", [None, EngineDeadError("gone"), ValueError("a bug of ours")])
async def test_a_fault_later_is_a_frame_and_done(serve, fault):
    async with serve() as served:
        served.client.fault_after = 2
        if fault is not None:
            served.client.fault = fault
        chunks = await frames(served, "/v1/chat/completions", CHAT)
        assert chunks[-1].keys() == {"error"}
        assert chunks[-1]["error"].keys() == {"message", "type", "param", "code"}
        assert "bug" not in chunks[-1]["error"]["message"]
        assert served.client.num_open == 0


async def test_text_that_json_must_escape_stays_on_one_line(serve):
    async with serve() as served:
        ask = {"prompt": 'a\n\n"\u2028\x00data: [DONE]', "echo": True, "max_tokens": 1, "stream": True}
        (chunk,) = await frames(served, "/v1/completions", ask)
        assert chunk["choices"][0]["text"] == ask["prompt"] + "a"


def split_comments(text):
    """Comments before each data frame, and the text without any."""
    counts, num = [], 0
    for event in text.split("\n\n"):
        num = num + 1 if event == ": keep-alive" else counts.append(num) or 0
    return counts, text.replace(": keep-alive\n\n", "")


async def test_a_silent_stream_carries_comments(serve, client):
    client.delay_s = 0.2
    async with serve(sse_keep_alive_interval_s=0.05) as served:
        reply = await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "stream": True})
        counts, text = split_comments(reply.text)
        assert counts[0] == 0
        assert counts[1] >= 1
        assert [chunk["choices"][0]["text"] for chunk in frames_of(text)] == ["a", "b"]
        reply = await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2})
        assert reply.json()["choices"][0]["text"] == "ab"
    async with serve(sse_keep_alive_interval_s=0) as served:
        reply = await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "stream": True})
        assert ": keep-alive" not in reply.text


@pytest.mark.parametrize("is_refused", [False, True])
async def test_comments_before_the_first_piece_open_the_stream(serve, client, is_refused):
    generate = client.generate

    async def late(*args, **more):
        await asyncio.sleep(0.2)
        client.is_full = is_refused
        async for piece in generate(*args, **more):
            yield piece

    client.generate = late
    async with serve(sse_keep_alive_interval_s=0.05) as served:
        reply = await served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "stream": True})
    assert reply.status_code == 200
    assert reply.text.startswith(": keep-alive\n\n")
    chunks = frames_of(split_comments(reply.text)[1])
    if is_refused:
        assert chunks[-1]["error"]["message"] == "the queue is full"
        assert served.app.state.server.metrics.rejections["queue_full"] == 1
    else:
        assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", "b"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]])
def test_a_client_that_leaves_ends_its_request(client, live, stream, reset, prompt):
    client.delay_s = 0.005
    body = json.dumps({"prompt": prompt, "max_tokens": 4000, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", live.port)) as connection:
        connection.sendall(head % len(body) + body)
        if stream:
            assert b"200 OK" in connection.recv(4096)
        else:
            wait_for(lambda: client.num_open)
        if reset:  # RST in place of FIN
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    num_prompts = 1 if isinstance(prompt, str) else len(prompt)
    wait_for(lambda: client.num_closed_early == num_prompts)
    assert client.num_open == 0
    metrics = live.app.state.server.metrics
    wait_for(lambda: metrics.finished["abort"] == num_prompts)
    wait_for(lambda: live.app.state.server.num_in_flight == 0)  # the server's thread is still on its way out


async def test_a_cancelled_server_task_closes_the_request(serve, client):
    client.delay_s = 0.01
    async with serve() as served:
        asking = asyncio.create_task(served.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 4000}))
        while not client.num_open:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert client.num_open == 0


def wait_for(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
