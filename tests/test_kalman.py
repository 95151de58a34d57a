"""A filter that takes readings one by one or several at a time, and never ceases to learn."""

from __future__ import annotations

import numpy as np
import pytest

from threefold.kalman import OUTLIER, SURPRISES, Estimate

SPREAD = np.diag([4.0, 1.0])
FEATURES = np.array([1.0, 2.0])


def estimate() -> Estimate:
    return Estimate(np.array([1.0, 1.0]), SPREAD.copy())


def believed(known: Estimate) -> float:
    return float(FEATURES @ known.values)


def test_a_reading_moves_what_is_most_unsure_furthest() -> None:
    known = estimate()
    known.observe(np.array([1.0, 1.0]), 3.0, 0.1)
    assert known.values.sum() == pytest.approx(3.0, abs=0.01)
    assert known.values[0] - 1.0 == pytest.approx(4 * (known.values[1] - 1.0))


def test_to_begin_with_nothing_is_learned_yet() -> None:
    assert estimate().values.tolist() == [1.0, 1.0]


def test_an_outlier_counts_as_one_just_within_the_limit() -> None:
    limit = OUTLIER * np.sqrt(FEATURES @ SPREAD @ FEATURES + 0.5**2)
    far, near = estimate(), estimate()
    far.observe(FEATURES, 1000.0, 0.5)
    near.observe(FEATURES, 3.0 + limit, 0.5)
    assert far.values == pytest.approx(near.values)


@pytest.mark.parametrize("num_readings", [2, 8, 20])
def test_several_at_once_teach_what_they_teach_one_by_one(num_readings: int) -> None:
    at_once, in_turn = estimate(), estimate()
    for reading in (3.3, 3.1, 3.2):
        at_once.observe(FEATURES, reading, 0.5, num_readings)
        for _ in range(num_readings):
            in_turn.observe(FEATURES, reading, 0.5)
    assert at_once.values == pytest.approx(in_turn.values, rel=0.01)
    at_once.observe(np.array([1.0, 0.0]), 2.0, 0.5)
    in_turn.observe(np.array([1.0, 0.0]), 2.0, 0.5)
    assert at_once.values == pytest.approx(in_turn.values, rel=0.05), "as sure of it, too"


@pytest.mark.parametrize("num_readings", [1, SURPRISES])
def test_what_stays_far_off_is_believed_soon(num_readings: int) -> None:
    """Sure that it is 3, a filter reads 30 time and again."""
    known = estimate()
    for _ in range(200):
        known.observe(FEATURES, 3.0, 0.01)
    for _ in range(2 * SURPRISES // num_readings):
        known.observe(FEATURES, 30.0, 0.01, num_readings)
    assert believed(known) == pytest.approx(30.0, rel=0.05)


def test_outliers_to_both_sides_are_no_news() -> None:
    known = estimate()
    for _ in range(200):
        known.observe(FEATURES, 3.0, 0.1)
    for _ in range(20):
        known.observe(FEATURES, 30.0, 0.1)
        known.observe(FEATURES, -24.0, 0.1)
    assert believed(known) == pytest.approx(3.0, abs=0.5)


def test_what_was_learned_fades() -> None:
    """Long sure of one figure, it still follows another as a filter must that forgets."""
    known = estimate()
    for _ in range(5_000):
        known.observe(FEATURES, 3.0, 0.2)
    for _ in range(300):
        known.observe(FEATURES, 3.3, 0.2)
    assert believed(known) == pytest.approx(3.3, abs=0.05)
