from __future__ import annotations

import pytest

from threefold.runner.inputs import build_inputs
from threefold.runner.outcome import row_results
from threefold.sample.sampler import NOTHING, Judged
from threefold.step import RowResult, StepPlan, TokenLogprobs

ENTRY = TokenLogprobs(1, -0.5, 1, ())


@pytest.fixture
def step(rows, new_row, plan_row):
    """A plan of three rows, of which the second wants no token, and what is made of it."""
    for request_id in (5, 6, 8):
        rows.grow(rows.add(new_row(request_id)), (request_id,))
    rows.set_draft(rows.find(8), [4])
    plan = StepPlan([plan_row(5, 2, 1), plan_row(6, 0, 2, wants=False), plan_row(8, 2, 2, max_draft=1)])
    return plan, build_inputs(plan, rows)


def test_rows_that_want_a_token_get_theirs_at_their_places(step):
    judged = Judged([[7], [4, 9]], None, None, {})
    assert row_results(*step, judged, {8: ((0.9, 0.5), "scripted")}, {1: [ENTRY]}) == [
        RowResult([7]),
        RowResult([], prompt_logprobs=[ENTRY]),
        RowResult([4, 9], num_drafted=1, survival=(0.9, 0.5), drafter="scripted"),
    ]


def test_errors_and_logprobs_are_their_rows_own(step):
    judged = Judged([[], [4]], None, [None, [ENTRY]], {0: "broken"}, is_sound=False)
    first, _, third = row_results(*step, judged, {}, {})
    assert (first.error, first.logprobs, third.error, third.logprobs) == ("broken", None, None, [ENTRY])


def test_where_every_row_gets_one_token_there_is_nothing_else_to_say(step, rows, plan_row):
    plan = StepPlan([plan_row(5, 2, 1), plan_row(6, 2, 1)])
    judged = Judged([[7], [9]], None, None, {})
    assert row_results(plan, build_inputs(plan, rows), judged, {}, {}) == [RowResult([7]), RowResult([9])]


def test_where_every_row_gets_tokens_drafts_and_offers_are_their_rows_own(step, rows, plan_row):
    plan = StepPlan([plan_row(5, 2, 1), plan_row(8, 2, 2, max_draft=1)])
    offers = {5: ((0.9, 0.5), "scripted"), 9: ((0.1,), "another")}
    assert row_results(plan, build_inputs(plan, rows), Judged([[7], [4, 9]], None, None, {}), offers, {}) == [
        RowResult([7], survival=(0.9, 0.5), drafter="scripted"),
        RowResult([4, 9], num_drafted=1),
    ]


def test_nobody_wants_a_token(rows, new_row, plan_row):
    rows.grow(rows.add(new_row(1)), (0,))
    plan = StepPlan([plan_row(1, 0, 2, wants=False)])
    assert row_results(plan, build_inputs(plan, rows), NOTHING, {}, {}) == [RowResult([])]
