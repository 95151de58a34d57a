"""Readings that come at once count as they would one after another."""

from __future__ import annotations

import pytest

from threefold.draft.decay import take_in


def mean_of(readings: list[tuple[float, int]], memory: float) -> tuple[float, float]:
    mean, num_known = 0.0, 0.0
    for value, num_readings in readings:
        share, num_known = take_in(num_known, num_readings, memory)
        mean += (value - mean) * share
    return mean, num_known


def test_a_few_have_their_plain_mean() -> None:
    assert mean_of([(1.0, 1), (4.0, 2)], 8.0) == (pytest.approx(3.0), 3.0)


@pytest.mark.parametrize("memory", [2.0, 8.0, 64.0])
def test_several_at_once_are_so_many_in_turn(memory: float) -> None:
    at_once = [(1.0, 3), (2.0, 8), (5.0, 1), (3.0, 100)]
    in_turn = [(value, 1) for value, num_readings in at_once for _ in range(num_readings)]
    assert mean_of(at_once, memory) == pytest.approx(mean_of(in_turn, memory))


def test_no_more_are_remembered_than_memory_says() -> None:
    mean, num_known = mean_of([(1.0, 1000), (2.0, 1)], 8.0)
    assert num_known == 8.0
    assert mean == pytest.approx(1.0 + 1.0 / 8.0)
