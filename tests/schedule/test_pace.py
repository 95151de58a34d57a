"""What steps are promised to take: the curve, times what it was lately wrong by."""

from __future__ import annotations

import pytest

from threefold.cost import CostCurve, StepShape
from threefold.schedule.pace import CLIP, FIRST_ERROR, STALE_STEPS, Pace

ONE = StepShape(1, 1, 10)
MANY = StepShape(64, 64, 640)


def make_pace(*, is_learning: bool = False) -> Pace:
    return Pace(CostCurve([(1, 10.0), (64, 20.0), (512, 100.0)]), is_learning=is_learning)


def feed(pace: Pace, shape: StepShape, period_ms: float, count: int = 50) -> None:
    for _ in range(count):
        pace.observe(shape, 10.0, period_ms)


def test_before_any_step_there_is_a_margin() -> None:
    assert make_pace().ms(1, 1, 10) == pytest.approx(10.0 * FIRST_ERROR)


def test_what_the_curve_does_not_have_is_learned() -> None:
    pace = make_pace()
    feed(pace, ONE, 15.0)
    assert pace.ms(1, 1, 10) == pytest.approx(15.0)


def test_sizes_err_each_by_themselves_and_unseen_ones_like_their_neighbour() -> None:
    pace = make_pace()
    feed(pace, ONE, 15.0)
    feed(pace, MANY, 22.0)
    assert pace.error(1) == pytest.approx(1.5)
    assert pace.error(2) == pytest.approx(1.5)
    assert pace.error(64) == pytest.approx(1.1)
    assert pace.error(512) == pytest.approx(1.1)


def test_scatter_widens_the_promise_by_less_than_the_worst_step() -> None:
    pace = make_pace()
    for turn in range(100):
        pace.observe(ONE, 10.0, 8.0 if turn % 2 else 12.0)
    assert 10.0 < pace.ms(1, 1, 10) < 12.0


def test_one_pause_rules_nothing_out() -> None:
    pace = make_pace()
    feed(pace, ONE, 10.0)
    pace.observe(ONE, 10.0, 5000.0)
    assert pace.error(1) < CLIP
    feed(pace, ONE, 10.0)
    assert pace.error(1) == pytest.approx(1.0)


def test_a_machine_that_has_become_slower_is_known_soon() -> None:
    pace = make_pace()
    feed(pace, ONE, 10.0)
    feed(pace, ONE, 20.0, count=16)
    assert pace.error(1) > 1.5


def test_a_size_that_was_not_seen_for_long_may_be_tried_again() -> None:
    pace = make_pace()
    feed(pace, MANY, 200.0)
    assert pace.error(64) > 5
    feed(pace, ONE, 10.0, count=STALE_STEPS + 70)
    assert pace.error(64) == pytest.approx(1.0)
    pace.observe(MANY, 10.0, 200.0)
    assert pace.error(64) == pytest.approx(1.0), "one reading is no evidence"


def test_the_curve_is_refined_by_one_of_its_holders() -> None:
    learning, reading = make_pace(is_learning=True), make_pace()
    for pace in (learning, reading):
        for _ in range(50):
            pace.observe(ONE, 20.0, 20.0)
    assert learning.error(1) < 1.2, "the curve itself says 20 ms now"
    assert reading.error(1) == pytest.approx(2.0)
    assert learning.ms(1, 1, 10) == pytest.approx(20.0, rel=0.15)


def test_steps_without_a_time_teach_nothing() -> None:
    pace = make_pace(is_learning=True)
    feed(pace, ONE, 0.0)
    pace.observe(ONE, 0.0, 0.0)
    assert pace.error(1) == FIRST_ERROR


@pytest.mark.parametrize(("limit_ms", "least", "most"), [(5.0, 0, 0), (15.0, 5, 40), (30.0, 64, 150), (1e6, 500, 500)])
def test_most_tokens_keep_the_limit_and_one_more_would_not(limit_ms: float, least: int, most: int) -> None:
    pace = make_pace()
    found = pace.most_tokens(limit_ms, num_rows=4, kv_tokens=100, most=500)
    assert least <= found <= most
    if found:
        assert pace.ms(4 + found, 5, 100 + found) <= limit_ms
    if found < 500:
        assert pace.ms(4 + found + 1, 5, 100 + found + 1) > limit_ms


def test_most_rows_fall_with_their_context() -> None:
    pace = Pace(CostCurve([(1, 10.0), (512, 100.0)], kv_token_ms=0.001), is_learning=False)
    short, long = (pace.most_rows(30.0, context, 0, 500) for context in (10, 1000))
    assert 0 < long < short < 500
    assert pace.most_rows(5.0, 10, 0, 500) == 0


def test_extra_tokens_come_on_top_of_a_step() -> None:
    pace = make_pace()
    found = pace.most_extra(30.0, MANY, 100)
    assert 0 < found < 100
    assert pace.ms(64 + found, 64, 640 + found) <= 30.0
    assert pace.most_extra(1.0, MANY, 100) == 0
