"""What steps without drafts take is known from such steps alone."""

from __future__ import annotations

import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.plain import PlainTimes

KNOTS = [(1, 1.0), (64, 2.0), (128, 3.0), (1024, 20.0)]


def shape(num_rows: int, kv_tokens: int = 0) -> StepShape:
    return StepShape(num_rows, num_rows, kv_tokens)


def test_before_any_reading_the_curve_speaks() -> None:
    assert PlainTimes().expected_ms(shape(64), CostCurve(KNOTS)) == pytest.approx(2.0)


def test_a_reading_stands_whatever_the_curve_comes_to_believe() -> None:
    plain = PlainTimes()
    plain.observe(shape(64), 2.2)
    misled = CostCurve([(tokens, 3 * ms) for tokens, ms in KNOTS])
    assert plain.expected_ms(shape(64), misled) == pytest.approx(2.2)


def test_the_curve_moves_a_reading_to_a_batch_a_little_different() -> None:
    plain, cost = PlainTimes(), CostCurve(KNOTS)
    plain.observe(shape(64), 4.0)
    assert plain.expected_ms(shape(60), cost) == pytest.approx(4.0 * cost.forward_ms(shape(60)) / 2.0)
    assert plain.expected_ms(shape(128), cost) == pytest.approx(3.0), "twice the rows: another load"


def test_longer_contexts_are_moved_to_as_well() -> None:
    plain, cost = PlainTimes(), CostCurve(KNOTS, kv_token_ms=0.001)
    plain.observe(shape(64, 1000), 3.0)
    assert plain.expected_ms(shape(64, 4000), cost) == pytest.approx(6.0)


def test_later_readings_take_over() -> None:
    plain = PlainTimes()
    for ms in [2.0] * 20 + [3.0] * 40:
        plain.observe(shape(16), ms)
    assert plain.expected_ms(shape(16), CostCurve(KNOTS)) == pytest.approx(3.0, rel=0.01)


def test_a_step_unlike_all_that_were_measured_takes_no_longer_than_a_larger_one_did() -> None:
    plain, misled = PlainTimes(), CostCurve([(tokens, 3 * ms) for tokens, ms in KNOTS])
    plain.observe(shape(64, 6400), 2.2)
    assert plain.expected_ms(shape(4, 400), misled) == pytest.approx(2.2)
    assert plain.expected_ms(shape(4, 40_000), misled) == misled.forward_ms(shape(4, 40_000)), "its context is larger"
    assert plain.expected_ms(shape(256, 400), misled) == misled.forward_ms(shape(256, 400))


def test_several_readings_at_once_are_so_many_in_turn() -> None:
    at_once, in_turn = PlainTimes(), PlainTimes()
    for ms, num_steps in ((2.0, 5), (3.0, 8), (2.5, 2)):
        at_once.observe(shape(16), ms, num_steps)
        for _ in range(num_steps):
            in_turn.observe(shape(16), ms)
    cost = CostCurve(KNOTS)
    assert at_once.expected_ms(shape(16), cost) == pytest.approx(in_turn.expected_ms(shape(16), cost))
