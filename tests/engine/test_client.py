from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from threefold.engine.client import EngineClient
from threefold.engine.outputs import OutputDelta
from threefold.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestFailedError,
)
from threefold.request import FinishReason, SamplingParams
from threefold.testing.byte_tokenizer import ByteTokenizer
from threefold.testing.fake_model import FakeModel

PROMPT = list(b"hello")
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


async def collect(stream: Any) -> dict[int, list[OutputDelta]]:
    answers: dict[int, list[OutputDelta]] = {}
    async for piece in stream:
        answers.setdefault(piece.index, []).append(piece)
    return answers


def text_of(pieces: list[OutputDelta]) -> str:
    return "".join(piece.text for piece in pieces)


def model_text(prompt: list[int], num_tokens: int) -> str:
    return bytes(FakeModel().answer(prompt, max_total_tokens=len(prompt) + num_tokens)).decode()


async def until_idle(client: EngineClient) -> None:
    """Wait until the engine holds nothing; the test's own limit ends it if it never comes to that."""
    while True:
        stats = await client.stats()
        if not (stats.num_running or stats.num_waiting or stats.num_held_blocks):
            return
        await asyncio.sleep(0.01)


async def test_an_answer_comes_as_the_model_says(start_engine: Any) -> None:
    client = await start_engine()
    pieces = (await collect(client.generate(PROMPT, SamplingParams(max_tokens=50), request_id="a")))[0]
    assert text_of(pieces) == model_text(PROMPT, 50)
    assert sum(len(piece.token_ids) for piece in pieces) == 50
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [FinishReason.LENGTH]
    assert pieces[-1].finish_reason is FinishReason.LENGTH
    assert pieces[0].queue_s is not None
    assert client.info.notes == ("num_blocks 4096: because",)


async def test_an_answer_without_a_limit_fills_the_context(start_engine: Any) -> None:
    client = await start_engine(max_model_len=64)
    pieces = (await collect(client.generate(PROMPT, ENDLESS, request_id="a")))[0]
    assert sum(len(piece.token_ids) for piece in pieces) == 64 - len(PROMPT)


async def test_many_requests_with_several_answers(start_engine: Any) -> None:
    client = await start_engine(max_num_seqs=16)
    params = SamplingParams(max_tokens=20, n=3)
    streams = [client.generate([*PROMPT, number], params, request_id=str(number)) for number in range(30)]
    for number, answers in enumerate(await asyncio.gather(*map(collect, streams))):
        assert sorted(answers) == [0, 1, 2]
        assert {text_of(pieces) for pieces in answers.values()} == {model_text([*PROMPT, number], 20)}
    await until_idle(client)


async def test_log_probabilities_come_with_their_tokens(start_engine: Any) -> None:
    client = await start_engine()
    params = SamplingParams(max_tokens=8, logprobs=2, prompt_logprobs=1)
    pieces = (await collect(client.generate(PROMPT, params, request_id="a")))[0]
    token_ids = [token_id for piece in pieces for token_id in piece.token_ids]
    logprobs = [entry for piece in pieces for entry in piece.logprobs or []]
    assert [entry.token_id for entry in logprobs] == token_ids
    assert all(len(entry.top) == 2 for entry in logprobs)
    assert [entry.token_id for entry in pieces[0].prompt_logprobs or []] == PROMPT[1:]


async def test_a_stop_string_ends_the_request_in_the_engine_too(start_engine: Any) -> None:
    client = await start_engine()
    whole = model_text(PROMPT, 200)
    stop = whole[10:13]
    params = SamplingParams(max_tokens=2000, stop=(stop,))
    pieces = (await collect(client.generate(PROMPT, params, request_id="a")))[0]
    assert text_of(pieces) == whole[: whole.index(stop)]
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == (FinishReason.STOP, stop)
    await until_idle(client)


async def test_a_stop_token_is_named_as_the_reason(start_engine: Any) -> None:
    client = await start_engine()
    token_id = ord(model_text(PROMPT, 10)[5])
    params = SamplingParams(max_tokens=500, stop_token_ids=(token_id,))
    pieces = (await collect(client.generate(PROMPT, params, request_id="a")))[0]
    assert text_of(pieces) == model_text(PROMPT, 10).split(chr(token_id))[0]
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == (FinishReason.STOP, token_id)


@pytest.mark.parametrize("how", ["aclose", "cancel", "drop"])
async def test_leaving_an_answer_frees_what_it_held(start_engine: Any, how: str) -> None:
    client = await start_engine(step_s=0.002)
    stream = client.generate(PROMPT, ENDLESS, request_id="a")
    await anext(stream)
    assert (await client.stats()).num_running == 1
    if how == "aclose":
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
    elif how == "cancel":
        reader = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.01)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
    else:
        del stream
    stats = await client.stats()
    assert (stats.num_running, stats.num_held_blocks) == (0, 0)


async def test_a_storm_of_aborts(start_engine: Any) -> None:
    client = await start_engine(max_num_seqs=64, step_s=0.001)
    kept = client.generate(PROMPT, SamplingParams(max_tokens=100), request_id="kept")

    async def leave(number: int) -> None:
        stream = client.generate([*PROMPT, number], ENDLESS, request_id=str(number))
        if number % 3:
            await anext(stream)
        await stream.aclose()

    await asyncio.gather(*(leave(number) for number in range(200)))
    assert text_of((await collect(kept))[0]) == model_text(PROMPT, 100)
    await until_idle(client)


async def test_pieces_for_a_slow_reader_are_merged(start_engine: Any) -> None:
    client = await start_engine()
    slow = client.generate(PROMPT, SamplingParams(max_tokens=500), request_id="slow")
    await collect(client.generate(PROMPT, SamplingParams(max_tokens=500), request_id="quick"))
    while (await client.stats()).num_running:
        pass
    pieces = (await collect(slow))[0]
    assert len(pieces) == 1
    assert len(pieces[0].token_ids) == 500
    assert pieces[0].text == model_text(PROMPT, 500)
    assert pieces[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], SamplingParams(), InvalidRequestError),
        ([1, 10**6], SamplingParams(), InvalidRequestError),
        ([1] * 65, SamplingParams(), ContextLengthError),
        ([1] * 60, SamplingParams(max_tokens=5), ContextLengthError),
        ([1], SamplingParams(max_draft_tokens=2**70), InvalidRequestError),
    ],
)
async def test_what_cannot_run_is_refused_at_once(
    start_engine: Any, prompt: list[int], params: SamplingParams, error: type[Exception]
) -> None:
    client = await start_engine(max_model_len=64)
    with pytest.raises(error):
        client.generate(prompt, params, request_id="a")
    await until_idle(client)
    assert await collect(client.generate(PROMPT, SamplingParams(), request_id="b"))


async def test_what_the_engine_refuses_reaches_the_reader(start_engine: Any) -> None:
    client = await start_engine(num_blocks=4)
    with pytest.raises(InvalidRequestError, match="KV cache holds 64"):
        await collect(client.generate(PROMPT, ENDLESS, request_id="a"))
    assert client.is_alive


@pytest.mark.parametrize(("priority", "words"), [(-1, "RuntimeError: cannot add this"), (-3, "this row only")])
async def test_one_requests_fault_ends_that_request(start_engine: Any, priority: int, words: str) -> None:
    client = await start_engine()
    other = client.generate(PROMPT, SamplingParams(max_tokens=300), request_id="other")
    with pytest.raises(RequestFailedError, match=words):
        await collect(client.generate(PROMPT, SamplingParams(n=2), request_id="a", priority=priority))
    assert text_of((await collect(other))[0]) == model_text(PROMPT, 300)
    await until_idle(client)


async def test_a_token_without_text_ends_its_request_only(start_engine: Any) -> None:
    class Holey(ByteTokenizer):
        def id_to_bytes(self, token_id: int) -> bytes:
            if chr(token_id) in "xyz":
                raise LookupError("no such token")
            return super().id_to_bytes(token_id)

    client = await start_engine(step_s=0.001)
    client.tokenizer = Holey()
    stream = client.generate(PROMPT, SamplingParams(max_tokens=200), request_id="a")
    client.tokenizer = ByteTokenizer()
    other = client.generate(PROMPT, SamplingParams(max_tokens=200), request_id="b")
    with pytest.raises(RequestFailedError, match="no such token"):
        await collect(stream)
    assert text_of((await collect(other))[0]) == model_text(PROMPT, 200)
    await until_idle(client)


def test_it_runs_under_uvloop(socket_home: Path) -> None:
    async def main() -> str:
        client = await EngineClient.start("fake_engine:build", {}, lambda info: ByteTokenizer())
        streams = [client.generate(PROMPT, SamplingParams(max_tokens=50), request_id=str(n)) for n in range(20)]
        texts = {text_of(answers[0]) for answers in await asyncio.gather(*map(collect, streams))}
        await client.generate(PROMPT, ENDLESS, request_id="left").aclose()
        await until_idle(client)
        await client.close()
        assert len(texts) == 1
        return texts.pop()

    assert uvloop.run(main()) == model_text(PROMPT, 50)


async def test_a_fault_of_the_executor_ends_everything_with_its_reason(start_engine: Any, socket_home: Path) -> None:
    client = await start_engine(step_s=0.001)
    streams = [client.generate(PROMPT, ENDLESS, request_id=str(number)) for number in range(3)]
    await asyncio.gather(*map(anext, streams))
    streams.append(client.generate(PROMPT, ENDLESS, request_id="fatal", priority=-2))
    for stream in streams:
        with pytest.raises(EngineDeadError, match="the card fell off"):
            await collect(stream)
    await client.dead
    assert not client.is_alive
    with pytest.raises(EngineDeadError, match="the card fell off"):
        client.generate(PROMPT, SamplingParams(), request_id="late")
    assert await client._process.exit == 1


async def test_a_killed_engine_is_noticed_by_all_and_leaves_nothing(start_engine: Any, socket_home: Path) -> None:
    client = await start_engine(step_s=0.001)
    streams = [client.generate(PROMPT, ENDLESS, request_id=str(number)) for number in range(20)]
    await asyncio.gather(*map(anext, streams))
    os.kill(client._process.pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(stream)
    assert not client.is_alive
    assert not list(socket_home.iterdir())
    for question in (client.stats, client.reset_prefix_cache):
        with pytest.raises(EngineDeadError):
            await question()
    assert await client.drain(1.0) == 0


async def test_a_question_that_is_open_when_the_engine_dies(start_engine: Any) -> None:
    client = await start_engine()
    os.kill(client._process.pid, signal.SIGSTOP)
    question = asyncio.ensure_future(client.stats())
    await asyncio.sleep(0.05)
    os.kill(client._process.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        await question


@pytest.mark.parametrize(
    ("factory", "error", "words"),
    [
        ("build_nothing", ModelLoadError, "^no such file: model.safetensors$"),
        ("build_with_a_bug", EngineDeadError, "could not start: KeyError: 'oops'"),
        ("build_and_vanish", EngineDeadError, "exit code 9, before it was ready"),
        ("build_of_another_name", ConfigError, "cannot import the engine factory"),
    ],
)
async def test_an_engine_that_does_not_start(
    start_engine: Any, factory: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await start_engine(factory)


async def test_giving_up_on_a_start_ends_the_process(start_engine: Any, socket_home: Path) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(start_engine("build_forever"), 0.5)
    assert not list(socket_home.iterdir())


async def test_a_full_queue_refuses_and_says_when_to_come_back(start_engine: Any) -> None:
    client = await start_engine(max_num_seqs=2, max_num_queued_reqs=3, step_s=0.001)
    streams = [client.generate(PROMPT, SamplingParams(max_tokens=30), request_id=str(n)) for n in range(5)]
    with pytest.raises(OverloadedError) as raised:
        client.generate(PROMPT, SamplingParams(), request_id="one too many")
    assert 1.0 <= raised.value.retry_after_s <= 60.0
    await asyncio.gather(*map(collect, streams))
    assert await collect(client.generate(PROMPT, SamplingParams(), request_id="later"))


async def test_draining_lets_answers_end_and_refuses_new_ones(start_engine: Any) -> None:
    client = await start_engine(step_s=0.001)
    reader = asyncio.ensure_future(collect(client.generate(PROMPT, SamplingParams(max_tokens=50), request_id="a")))
    await asyncio.sleep(0)
    drain = asyncio.ensure_future(client.drain(30.0))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="shutting down"):
        client.generate(PROMPT, SamplingParams(), request_id="late")
    assert await drain == 0
    assert text_of((await reader)[0]) == model_text(PROMPT, 50)


async def test_draining_aborts_what_takes_too_long(start_engine: Any) -> None:
    client = await start_engine(step_s=0.005)
    reader = asyncio.ensure_future(collect(client.generate(PROMPT, ENDLESS, request_id="a")))
    assert await client.drain(0.05) == 1
    assert (await reader)[0][-1].finish_reason is FinishReason.ABORT
    stats = await client.stats()
    assert (stats.num_running, stats.num_held_blocks) == (0, 0)


async def test_closing_fails_what_still_runs(start_engine: Any) -> None:
    client = await start_engine(step_s=0.005)
    stream = client.generate(PROMPT, ENDLESS, request_id="a")
    await client.close()
    with pytest.raises(EngineDeadError, match="shut down"):
        await collect(stream)
    await client.close()


async def test_the_prefix_cache_is_reset_on_request(start_engine: Any) -> None:
    client = await start_engine()
    prompt = list(range(64))
    await collect(client.generate(prompt, SamplingParams(max_tokens=1), request_id="a"))
    pieces = (await collect(client.generate(prompt, SamplingParams(max_tokens=1), request_id="b")))[0]
    assert pieces[0].num_cached_tokens > 0
    assert await client.reset_prefix_cache()
    pieces = (await collect(client.generate(prompt, SamplingParams(max_tokens=1), request_id="c")))[0]
    assert pieces[0].num_cached_tokens == 0


async def test_interrupts_are_left_to_the_parent(start_engine: Any) -> None:
    client = await start_engine()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(client._process.pid, number)
    assert await collect(client.generate(PROMPT, SamplingParams(), request_id="a"))


@pytest.mark.parametrize("factory", ["build", "build_forever"])
def test_a_parent_that_dies_takes_the_engine_and_its_folder_with_it(socket_home: Path, factory: str) -> None:
    code = f"""
        import asyncio
        from threefold.engine.client import EngineClient

        async def main():
            client = EngineClient("fake_engine:{factory}", {{}})
            print(client._process.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(socket_home)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert list(socket_home.iterdir())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while is_running(child):
        time.sleep(0.02)
    assert not list(socket_home.iterdir())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_who_would_wait_too_long_for_the_targets_is_told_when_to_come_back(start_engine: Any) -> None:
    client = await start_engine(slo={"ttft": 50.0}, max_num_seqs=1, step_s=0.005)
    running = client.generate(PROMPT, SamplingParams(max_tokens=60, ignore_eos=True), request_id="r")
    await anext(running)
    refused = [client.generate(PROMPT, SamplingParams(max_tokens=5), request_id=f"q{i}") for i in range(3)]
    for stream in refused:
        with pytest.raises(OverloadedError, match="this server holds to 50 ms") as caught:
            await collect(stream)
        assert caught.value.reason == "slo"
        assert caught.value.retry_after_s >= 1.0
    pieces = [piece async for piece in running]
    assert pieces[-1].finish_reason is FinishReason.LENGTH, "who runs is not disturbed"
    stats = await client.stats()
    assert stats.slo.num_shed == 3
    assert text_of((await collect(client.generate(PROMPT, SamplingParams(max_tokens=5), request_id="n")))[0])


async def test_answers_of_one_request_are_refused_together(start_engine: Any) -> None:
    client = await start_engine(slo={"ttft": 50.0}, max_num_seqs=1, step_s=0.005)
    with pytest.raises(OverloadedError):
        await collect(client.generate(PROMPT, SamplingParams(n=4, max_tokens=100, ignore_eos=True), request_id="r"))
    await until_idle(client)
