"""All that drafts cost, and nothing that steps without them cost too."""

from __future__ import annotations

import pytest

from threefold.engine.price import DraftPrice
from threefold.request import SamplingParams
from threefold.step import NewRow, RowPlan, RowResult, StepPlan, StepResult


def step(num_rows: int, next_draft: int, num_tokens: int = 1) -> tuple[StepPlan, StepResult]:
    rows = [RowPlan(i, 10, 1, 0, (), True, next_draft) for i in range(num_rows)]
    results = [RowResult([7] * num_tokens) for _ in range(num_rows)]
    return StepPlan(rows), StepResult(results, forward_ms=10.0, draft_ms=0.5)


def test_where_steps_follow_each_other_only_what_comes_on_top_is_the_price() -> None:
    price = DraftPrice(is_overlapped=False)
    for index in range(50):  # 12 ms a step, 10 of them forward: half a millisecond a row
        plan, result = step(4, next_draft=0)
        assert price.put(plan, result, index * 0.012).draft_ms == 0.0
    plan, result = step(4, next_draft=3)

    assert price.put(plan, result, 49 * 0.012 + 0.015).draft_ms == pytest.approx(3.0)


def test_more_tokens_may_take_the_host_longer() -> None:
    price = DraftPrice(is_overlapped=False)
    for index in range(50):
        price.put(*step(4, next_draft=0), index * 0.012)

    priced = price.put(*step(4, next_draft=3, num_tokens=2), 49 * 0.012 + 0.015)
    assert priced.draft_ms == pytest.approx(1.0)  # 5 ms beside the forward pass, 4 of them for eight tokens


def test_where_steps_overlap_all_of_it_is_the_price() -> None:
    price = DraftPrice(is_overlapped=True)
    price.put(*step(4, next_draft=0), 1.0)

    assert price.put(*step(4, next_draft=3), 1.015).draft_ms == pytest.approx(5.0)


def test_where_steps_overlap_the_step_behind_an_asking_waits_for_it_too() -> None:
    price = DraftPrice(is_overlapped=True)
    price.put(*step(4, next_draft=3), 1.0)

    assert price.put(*step(4, next_draft=0), 1.014).draft_ms == pytest.approx(4.0)
    assert price.put(*step(4, next_draft=0), 1.028).draft_ms == 0.0


def test_where_steps_overlap_and_the_host_is_slower_that_is_not_the_drafts_price() -> None:
    price = DraftPrice(is_overlapped=True)
    for index in range(50):  # 12 ms a step, of which the device works 10
        price.put(*step(4, next_draft=0), index * 0.012)

    assert price.put(*step(4, next_draft=3), 49 * 0.012 + 0.015).draft_ms == pytest.approx(3.0, abs=0.3)


def test_rows_set_up_beside_it_are_no_part_of_the_price() -> None:
    """Until it is known what setting up takes, no more than twice the price lately stands for it."""
    price = DraftPrice(is_overlapped=True)
    price.put(*step(4, next_draft=3), 1.0)
    price.put(*step(4, next_draft=3), 1.013)  # 3 ms

    assert price.put(*with_new_row(4, next_draft=3), 1.063).draft_ms == pytest.approx(6.0)
    assert price.put(*step(4, next_draft=3), 1.103).draft_ms == pytest.approx(6.0)
    assert price.put(*step(4, next_draft=3), 1.117).draft_ms == pytest.approx(4.0)


def test_what_drafts_lay_bare_of_setting_rows_up_is_their_price() -> None:
    """A row's set-up that the device hides without drafts, where every step is one with drafts."""
    price = DraftPrice(is_overlapped=True)
    price.put(*step(4, next_draft=3), 1.0)
    price.put(*step(4, next_draft=3), 1.013)  # 3 ms

    assert price.put(*with_new_row(4, next_draft=3), 1.027).draft_ms == pytest.approx(4.0)


@pytest.mark.parametrize("is_overlapped", [True, False])
def test_drafts_beside_rows_that_are_set_up_have_a_price_too(is_overlapped: bool) -> None:
    """Where answers are short nearly every step sets a row up: a price of other steps alone is hardly ever read."""
    price = DraftPrice(is_overlapped=is_overlapped)
    for index in range(50):  # 10 ms, and 12 ms with a new row and behind one
        price.put(*step(4, next_draft=0), index * 0.010)
    for index in range(50):
        price.put(*with_new_row(4, next_draft=0), 0.5 + index * 0.012)

    assert price.put(*with_new_row(4, next_draft=3), 0.5 + 49 * 0.012 + 0.019).draft_ms == pytest.approx(7.0, abs=0.3)


def test_one_slow_step_does_not_make_drafts_free() -> None:
    """As behind a prompt of many chunks: what a step without drafts took once is not what it takes."""
    price = DraftPrice(is_overlapped=True)
    price.put(*step(4, next_draft=0), 1.0)
    price.put(*step(4, next_draft=0), 1.040)
    for index in range(1, 8):
        price.put(*step(4, next_draft=0), 1.040 + index * 0.010)

    ended_s = 1.040 + 7 * 0.010
    assert price.put(*step(4, next_draft=3, num_tokens=3), ended_s + 0.015).draft_ms == pytest.approx(5.0, abs=1.5)


def test_a_step_behind_a_part_of_a_prompt_is_no_reading_of_plain_ones() -> None:
    price = DraftPrice(is_overlapped=True)
    rows = [RowPlan(i, 10, 1 if i else 512, 0, (), True, 0) for i in range(4)]
    price.put(StepPlan(rows), step(4, 0)[1], 1.0)
    price.put(*step(4, next_draft=0), 1.030)

    assert price.put(*step(4, next_draft=3), 1.045).draft_ms == pytest.approx(5.0)


def test_a_first_wave_does_not_excuse_what_drafts_take_beside_one_new_row() -> None:
    """It is over in a few steps, and no step without drafts may come behind it to say that others are quicker."""
    price = DraftPrice(is_overlapped=True)
    for index in range(4):  # 10 ms of 28 beside the device's work
        price.put(*with_new_row(256, next_draft=0, num_new=90), index * 0.028)
    ended_s = 3 * 0.028
    for index in range(1, 20):
        priced = price.put(*with_new_row(256, next_draft=3), ended_s + index * 0.0115)
    assert priced.draft_ms == pytest.approx(1.3, abs=0.1), "of 1.5 ms a new row takes two tenths"


def with_new_row(num_rows: int, next_draft: int, num_new: int = 1) -> tuple[StepPlan, StepResult]:
    plan, result = step(num_rows, next_draft)
    new = [NewRow(i, (1, 2, 3), 3, SamplingParams(), frozenset(), 0, "") for i in range(num_new)]
    plan.new_rows.extend(new)
    return plan, result


def test_rest_is_nobodys_and_an_unknown_load_keeps_what_was_timed() -> None:
    price = DraftPrice(is_overlapped=False)
    price.put(*step(4, next_draft=0), 1.0)
    price.rest()

    assert price.put(*step(4, next_draft=3), 100.0).draft_ms == 0.5
    assert price.put(*step(64, next_draft=3), 100.5).draft_ms == 0.5
