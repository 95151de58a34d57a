from __future__ import annotations

import pytest

from threefold.engine.gate import Gate
from threefold.errors import OverloadedError


def test_it_is_open_until_as_many_wait_as_may() -> None:
    gate = Gate(max_running=4, max_waiting=2)
    for num_in_flight in range(6):
        gate.check(num_in_flight)
    with pytest.raises(OverloadedError, match="2 requests wait already, at most 2 may"):
        gate.check(6)


def test_coming_back_makes_sense_when_the_waiting_have_had_their_turn() -> None:
    gate = Gate(max_running=1, max_waiting=1)
    for end in range(100):
        gate.observe_end(end * 0.5)
    assert gate.retry_after_s(20) == pytest.approx(10.0)


def test_the_newest_ends_count_more() -> None:
    gate = Gate(max_running=1, max_waiting=1)
    for end_s in [*range(0, 50, 10), *range(50, 100)]:
        gate.observe_end(float(end_s))
    assert gate.retry_after_s(10) == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize(("interval_s", "expected_s"), [(0.001, 1.0), (1000.0, 60.0)])
def test_the_time_to_come_back_is_bounded(interval_s: float, expected_s: float) -> None:
    gate = Gate(max_running=1, max_waiting=1)
    gate.observe_end(0.0)
    gate.observe_end(interval_s)
    assert gate.retry_after_s(10) == expected_s


def test_without_any_end_seen_a_second_each_is_guessed() -> None:
    assert Gate(max_running=1, max_waiting=1).retry_after_s(5) == 5.0
