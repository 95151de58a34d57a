import asyncio
import socket

import pytest

from threefold.bench import load as load_module
from threefold.bench.client import Endpoint
from threefold.bench.load import Load
from threefold.bench.outcome import Outcome
from threefold.bench.prompt import Prompt
from threefold.bench.request_form import RequestForm

PROMPTS = [Prompt(f"prompt {index}", category="writing") for index in range(12)]


async def send(
    endpoint: Endpoint, *, num_prompts: int = 12, concurrency: int = 4, form: RequestForm | None = None, **kwargs
) -> Load:
    load = Load(endpoint, form or RequestForm(model="m"), concurrency=concurrency, **kwargs)
    await load.run(PROMPTS[:num_prompts])
    return load


def errors(load: Load) -> list[str]:
    return sorted(outcome.error for outcome in load.outcomes if outcome.error)


def good(load: Load) -> list[Outcome]:
    return [outcome for outcome in load.outcomes if not outcome.error]


async def test_a_closed_loop_keeps_its_streams_and_connections(sse_server) -> None:
    load = await send(sse_server.endpoint)
    assert errors(load) == []
    assert len(load.outcomes) == load.num_sent == 12
    assert sse_server.max_in_flight == 4
    assert sse_server.num_connections == 4
    assert not load.running
    assert sorted(body["messages"][0]["content"] for body in sse_server.bodies) == sorted(p.text for p in PROMPTS)


async def test_what_an_outcome_holds(sse_server) -> None:
    outcome = (await send(sse_server.endpoint, num_prompts=1)).outcomes[0]
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (7, 10, 3)
    assert outcome.is_counted
    assert outcome.finish_reason == "length"
    assert outcome.category == "writing"
    assert len(outcome.chunk_times_s) == 5  # neither the role's chunk nor the usage's
    assert outcome.start_s < outcome.chunk_times_s[0] <= outcome.chunk_times_s[-1] <= outcome.end_s


async def test_the_body_of_a_chat(sse_server) -> None:
    form = RequestForm(model="m", max_tokens=9, ignore_eos=True, temperature=0.5, seed=40, extra={"top_k": 3})
    await send(sse_server.endpoint, num_prompts=2, concurrency=1, form=form)
    assert sse_server.bodies[1] == {
        "model": "m", "messages": [{"role": "user", "content": "prompt 1"}], "max_tokens": 9, "temperature": 0.5,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "seed": 41, "top_k": 3,
    }  # fmt: skip


async def test_the_body_of_a_completion(sse_server) -> None:
    load = await send(sse_server.endpoint, num_prompts=1, form=RequestForm(api="completions", model="m"))
    assert errors(load) == []
    assert sse_server.bodies[0]["prompt"] == "prompt 0"
    assert "seed" not in sse_server.bodies[0]
    assert "ignore_eos" not in sse_server.bodies[0]
    assert "POST /v1/completions" in sse_server.heads[0]
    assert len(load.outcomes[0].chunk_times_s) == 5


async def test_a_prompt_s_own_length_wins(sse_server) -> None:
    load = Load(sse_server.endpoint, RequestForm(model="m", max_tokens=9), concurrency=1)
    await load.run([Prompt("x", max_tokens=3)])
    assert sse_server.bodies[0]["max_tokens"] == 3


async def test_bodies_that_end_with_the_connection(sse_server) -> None:
    sse_server.is_chunked = False
    load = await send(sse_server.endpoint, concurrency=2)
    assert errors(load) == []
    assert {outcome.output_tokens for outcome in load.outcomes} == {10}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("503", "HTTP 503: the queue is full"),
        ("die", "connection lost midway"),
        ("error", "error in the stream: the engine is dead"),
        ("silence", "connection lost before an answer"),
        ("cut", "the stream ended before the answer did"),
    ],
)
async def test_failures_are_counted_and_the_rest_kept(sse_server, fault: str, reason: str) -> None:
    sse_server.behaviour = lambda index: fault if index % 3 == 0 else ""
    load = await send(sse_server.endpoint)
    assert errors(load) == [reason] * 4
    assert len(good(load)) == 8


async def test_what_is_no_http(sse_server) -> None:
    sse_server.behaviour = lambda index: "garbage" if index == 0 else ""
    load = await send(sse_server.endpoint, num_prompts=2, concurrency=1)
    assert len(errors(load)) == 1
    assert errors(load)[0].startswith("the answer is no HTTP")
    assert len(good(load)) == 1


async def test_nobody_listens() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    load = await send(Endpoint("127.0.0.1", port))
    assert set(errors(load)) == {"connection refused"}
    assert load.gone == "connection refused"
    assert load.num_sent == 4  # nobody is there a moment later either: the rest is not sent


async def test_no_such_host() -> None:
    load = await send(Endpoint("no-such-host.invalid", 80), num_prompts=1)
    assert errors(load)[0].startswith("cannot connect: ")


async def test_an_answer_that_takes_too_long_fails_alone(sse_server) -> None:
    sse_server.behaviour = lambda index: "stall" if index == 1 else ""
    load = await send(sse_server.endpoint, num_prompts=4, concurrency=2, timeout_s=0.3)
    assert errors(load) == ["timed out after 0.3 s"]
    assert len(good(load)) == 3


async def test_stop_keeps_what_is_measured(sse_server) -> None:
    sse_server.behaviour = lambda index: "stall" if index >= 4 else ""
    load = Load(sse_server.endpoint, RequestForm(model="m"), concurrency=4)
    running = asyncio.create_task(load.run(PROMPTS))
    while len(load.outcomes) < 4:
        await asyncio.sleep(0.01)
    load.stop()
    await running
    assert len(good(load)) == 4
    assert len(load.running) == 4
    assert load.duration_s > 0


async def test_stop_before_anything_was_sent(sse_server) -> None:
    load = Load(sse_server.endpoint, RequestForm(model="m"), concurrency=4)
    asyncio.get_running_loop().call_soon(load.stop)
    await load.run(PROMPTS)
    assert load.outcomes == []


async def test_cancelling_from_outside_is_no_stop(sse_server) -> None:
    sse_server.behaviour = lambda index: "stall"
    load = Load(sse_server.endpoint, RequestForm(model="m"), concurrency=2)
    running = asyncio.create_task(load.run(PROMPTS))
    while len(load.running) < 2:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_server_that_dies_midway_ends_the_load(sse_server) -> None:
    sse_server.behaviour = lambda index: "bow out" if index == 6 else ""
    load = await send(sse_server.endpoint, num_prompts=12, concurrency=2)
    assert load.gone == "connection refused"
    assert errors(load) == ["connection lost before an answer", "connection refused"]
    assert len(good(load)) == len(load.outcomes) - 2 >= 5  # the other stream goes on until the load ends
    assert load.is_stopped


async def test_an_open_loop_sends_at_its_moments(sse_server) -> None:
    sse_server.behaviour = lambda index: "stall" if index < 3 else ""
    load = Load(sse_server.endpoint, RequestForm(model="m"), concurrency=None, timeout_s=0.5)
    moments = [0.0, 0.0, 0.0, 0.05, 0.1, 0.15]
    await load.run(PROMPTS[:6], moments)
    sent = sorted(outcome.start_s - load.start_s for outcome in load.outcomes)
    assert all(moment - 0.002 <= at for moment, at in zip(moments, sent, strict=True))
    assert len(good(load)) == 3  # sent although the first three were not answered
    assert sse_server.max_in_flight >= 4
    assert all(outcome.due_s is not None for outcome in load.outcomes)


async def test_an_open_loop_may_be_capped(sse_server) -> None:
    load = Load(sse_server.endpoint, RequestForm(model="m"), concurrency=2)
    await load.run(PROMPTS, [0.0] * 12)
    assert errors(load) == []
    assert sse_server.max_in_flight == 2
    assert max(outcome.queue_s for outcome in load.outcomes) > 0
    assert sse_server.num_connections == 2


async def test_requests_beyond_the_budget_are_made_when_sent(sse_server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_PREPARED_BYTES", 500)
    load = await send(sse_server.endpoint, concurrency=1)
    assert errors(load) == []
    assert [body["messages"][0]["content"] for body in sse_server.bodies] == [prompt.text for prompt in PROMPTS]


async def test_an_open_loop_stops_too(sse_server) -> None:
    sse_server.behaviour = lambda index: "stall" if index >= 2 else ""
    load = Load(sse_server.endpoint, RequestForm(model="m"), concurrency=None)
    running = asyncio.create_task(load.run(PROMPTS, [0.0, 0.0, *[0.01] * 3, *[60.0] * 7]))
    while len(load.outcomes) < 2 or len(load.running) < 3:
        await asyncio.sleep(0.01)
    load.stop()
    await running
    assert (len(good(load)), len(load.running), load.num_sent) == (2, 3, 5)


async def test_bodies_that_the_data_set_brings(sse_server) -> None:
    load = Load(sse_server.endpoint, RequestForm(api="completions", model="m", temperature=0.3), concurrency=1)
    await load.run([Prompt("", body='{"messages": [{"role": "user", "content": "hi"}], "top_p": 0.5}')])
    assert errors(load) == []
    assert "POST /v1/chat/completions" in sse_server.heads[0]
    assert sse_server.bodies[0]["top_p"] == 0.5


async def test_error_bodies_of_any_form(sse_server) -> None:
    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 10\r\n\r\nit\nbroke!!\n"[:-1])
        return True

    sse_server.answer = answer
    load = await send(sse_server.endpoint, num_prompts=1)
    assert errors(load) == ["HTTP 500: it broke!!"]
