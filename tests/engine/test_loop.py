from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from threefold.cache.manager import CacheManager
from threefold.draft.controller import NoDrafts
from threefold.engine import loop, wire
from threefold.engine.core import EngineCore
from threefold.errors import ConfigError
from threefold.request import SamplingParams
from threefold.schedule.scheduler import Scheduler
from threefold.testing.fake_executor import FakeExecutor
from threefold.testing.fake_model import FakeModel

PROMPT = [1, 2, 3]


class Engine:
    """An EngineLoop in a thread, and the client's end of its socket."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        scheduler = Scheduler(CacheManager(64, 16), NoDrafts(), max_num_seqs=8, max_num_batched_tokens=64)
        self.executor = FakeExecutor()
        self.socket = context.socket(zmq.PAIR)
        self.socket.bind("inproc://engine")
        self._other = context.socket(zmq.PAIR)
        self._other.connect("inproc://engine")
        self.core = EngineCore(scheduler, self.executor, vocab_size=256)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            loop.EngineLoop(self.core, self._other).run()
        except Exception as error:  # noqa: BLE001 - whatever comes out is looked at by the test
            self.error = error
        finally:
            self._other.close(linger=0)

    def send(self, message: wire.Message) -> None:
        self.socket.send(wire.encode(message))

    def read(self) -> wire.FromEngine:
        return wire.decode_from_engine(self.socket.recv())

    def add(self, request_ids: list[int], **wishes: Any) -> None:
        params = SamplingParams(**wishes)
        seeds = [0] * len(request_ids)
        total = len(PROMPT) + (params.max_tokens or 500)
        self.send(wire.AddRequest(request_ids, seeds, PROMPT, params, total, [], 0.0, 0, ""))

    def read_answer(self, request_id: int) -> list[int]:
        """Tokens until the answer ends; those of others are dropped."""
        token_ids: list[int] = []
        while True:
            step = self.read()
            assert isinstance(step, wire.StepOutput)
            for row_id, some in zip(step.request_ids, step.token_ids, strict=True):
                token_ids += some if row_id == request_id else []
            for delta in step.deltas:
                if delta.request_id == request_id:
                    token_ids += delta.token_ids
                    if delta.finish_reason is not None:
                        return token_ids


@pytest.fixture
def engine() -> Iterator[Engine]:
    context = zmq.Context()
    engine = Engine(context)
    yield engine
    if engine.thread.is_alive():
        engine.send(wire.Shutdown())
    engine.thread.join()
    context.destroy(linger=0)


def test_requests_become_tokens(engine: Engine) -> None:
    engine.add([5, 6], max_tokens=9)
    assert engine.read_answer(5) == FakeModel().answer(PROMPT, max_total_tokens=12)


def test_an_idle_engine_waits_and_takes_up_work_again(engine: Engine) -> None:
    for request_id in range(3):
        engine.add([request_id], max_tokens=4)
        assert len(engine.read_answer(request_id)) == 4
    num_steps = engine.executor.num_steps
    engine.send(wire.GetStats(1))
    stats = engine.read()
    assert isinstance(stats, wire.Stats)
    assert stats.stats.num_steps == num_steps
    assert engine.executor.num_steps == num_steps


def test_an_abort_between_steps_frees_everything(engine: Engine) -> None:
    engine.add([1, 2], max_tokens=None)
    engine.read()
    engine.send(wire.Abort([1, 2, 99]))
    engine.send(wire.GetStats(7))
    while not isinstance(message := engine.read(), wire.Stats):
        pass
    assert message.ticket == 7
    assert (message.stats.num_running, message.stats.num_held_blocks) == (0, 0)


def test_a_shutdown_ends_it_while_requests_run(engine: Engine) -> None:
    engine.add([1], max_tokens=None)
    engine.send(wire.Shutdown())
    engine.thread.join()
    assert engine.error is None


@pytest.mark.parametrize(
    ("message", "words", "is_our_fault"),
    [
        (wire.AddRequest([1], [0], [256], SamplingParams(), 20, [], 0.0, 0, ""), "vocabulary", False),
        (wire.AddRequest([1], [0], [], SamplingParams(), 20, [], 0.0, 0, ""), "no tokens", False),
        (wire.AddRequest([1, 2], [0], [5], SamplingParams(), 20, [], 0.0, 0, ""), "ValueError", True),
    ],
)
def test_a_request_that_cannot_be_added_is_sent_back(
    engine: Engine, message: wire.AddRequest, words: str, is_our_fault: bool
) -> None:
    engine.send(message)
    answer = engine.read()
    assert isinstance(answer, wire.RequestRejected)
    assert (answer.request_ids, answer.is_our_fault) == (message.request_ids, is_our_fault)
    assert words in answer.message
    engine.add([3], max_tokens=2)
    assert len(engine.read_answer(3)) == 2


def test_a_fault_of_the_executor_comes_out(engine: Engine) -> None:
    engine.executor.step_fault = RuntimeError("gone")
    engine.add([1])
    engine.thread.join()
    assert str(engine.error) == "gone"


def test_noise_ends_the_engine_rather_than_being_guessed_at(engine: Engine) -> None:
    engine.socket.send(b"noise")
    engine.thread.join()
    assert isinstance(engine.error, msgspec.DecodeError)


@pytest.mark.parametrize(
    "name", ["no_such_module:f", "threefold.engine.loop:no_such", "threefold.engine.loop", ":f", ""]
)
def test_a_factory_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot import the engine factory"):
        loop.load_factory(name)


def test_a_fault_is_described_in_one_line() -> None:
    assert loop.describe(RuntimeError("out of\n  memory")) == "RuntimeError: out of memory"
    assert len(loop.describe(RuntimeError("x" * 9999))) == loop.MAX_FAULT_CHARS


def test_a_factory_is_found_by_name() -> None:
    assert loop.load_factory("threefold.engine.loop:main") is loop.main


def test_a_launch_may_come_in_pieces() -> None:
    launch = wire.Launch("a:b", {"x": "y" * 10_000}, "ipc:///tmp/x", 1)
    reading, writing = os.pipe()
    data = msgspec.json.encode(launch) + b"\n"
    writer = threading.Thread(
        target=lambda: [os.write(writing, data[at : at + 999]) for at in range(0, len(data), 999)]
    )
    writer.start()
    assert loop.read_launch(reading) == launch
    writer.join()
    os.close(reading)
    os.close(writing)


def test_a_process_whose_parent_says_nothing_ends() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "threefold.engine.loop"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        check=False,
    )
    assert process.returncode == loop.EXIT_ORPHAN
