from __future__ import annotations

import pytest
import torch

from threefold.runner.readback import HostReadback, StreamReadback, pack
from threefold.sample.sampler import Likely

CPU = torch.device("cpu")


class FakeQueue:
    """A device's queue: marks take their place in it, the device arrives when it is told to."""

    def __init__(self):
        self.now_ms = 0.0

    def mark(self):
        return FakeMark(self)


class FakeMark:
    def __init__(self, queue):
        self._queue = queue
        self.at_ms = None
        self.is_waited_for = False

    def record(self):
        self.at_ms = self._queue.now_ms

    def synchronize(self):
        assert self.at_ms is not None
        self.is_waited_for = True

    def elapsed_time(self, other):
        assert self.at_ms is not None
        assert other.at_ms is not None
        return other.at_ms - self.at_ms


def likely(*tokens):
    return Likely(torch.tensor(tokens), torch.tensor([token / 2 for token in tokens]))


@pytest.fixture(params=["host", "stream"])
def readback(request):
    return HostReadback() if request.param == "host" else StreamReadback(8, CPU, FakeQueue().mark)


def test_tokens_and_values_come_back(readback):
    readback.begin()
    arrived = readback.send(likely(3, 9, 4), 2).wait()
    assert arrived.tokens.tolist() == [3, 9]
    assert arrived.values.tolist() == [1.5, 4.5]
    assert str(arrived.tokens.dtype) == "int64"
    assert arrived.forward_ms >= 0


def test_a_step_without_tokens(readback):
    readback.begin()
    arrived = readback.send(None, 0).wait()
    assert (len(arrived.tokens), len(arrived.values)) == (0, 0)


def test_what_is_packed_already_is_taken_as_it_is(readback):
    readback.begin()
    packed = likely(5, 6)._replace(packed=pack(likely(5, 6, 0, 0)))
    assert readback.send(packed, 2).wait().tokens.tolist() == [5, 6]


def test_two_steps_in_flight_do_not_mix():
    readback = StreamReadback(8, CPU, FakeQueue().mark)
    readback.begin()
    first = readback.send(likely(1), 1)
    for token in range(2, 12):
        readback.begin()
        second = readback.send(likely(token, token), 2)
        arrived = first.wait()
        assert set(arrived.tokens.tolist()) == {token - 1}
        first = second
    assert arrived.tokens.tolist() == [10, 10]


def test_times_are_those_between_marks_and_steps_that_failed_leave_none():
    queue = FakeQueue()
    readback = StreamReadback(8, CPU, queue.mark)
    times = []
    for begin_ms, end_ms in ((0.0, 5.0), (5.5, None), (6.0, 9.0), (9.0, 10.0)):
        queue.now_ms = begin_ms
        readback.begin()
        if end_ms is None:
            continue  # it found no memory
        queue.now_ms = end_ms
        arrived = readback.send(likely(1), 1).wait()
        times.append((arrived.forward_ms, arrived.idle_ms))
    assert times == [(5.0, 0.0), (3.0, 1.0), (1.0, 0.0)]


def test_work_behind_a_step_is_no_rest():
    queue = FakeQueue()
    readback = StreamReadback(8, CPU, queue.mark)
    times = []
    for begin_ms, end_ms, behind_ms in ((0.0, 5.0, 7.0), (7.5, 10.0, None), (11.0, 12.0, None)):
        queue.now_ms = begin_ms
        readback.begin()
        queue.now_ms = end_ms
        pending = readback.send(likely(1), 1)
        if behind_ms is not None:
            queue.now_ms = behind_ms
            readback.end_behind()
        arrived = pending.wait()
        times.append((arrived.forward_ms, arrived.behind_ms, arrived.idle_ms))
    assert times == [(5.0, 0.0, 0.0), (2.5, 2.0, 0.5), (1.0, 0.0, 1.0)]
