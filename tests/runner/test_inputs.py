from __future__ import annotations

import numpy as np
import pytest

from threefold.runner.inputs import build_inputs
from threefold.step import StepPlan


@pytest.fixture
def three_rows(rows, new_row):
    """Request 5 has 10 tokens in blocks 3, 1, 7; 6 has 4 tokens and two drafts; 8 wants prompt logprobs."""
    first = rows.add(new_row(5, tuple(range(10, 20))))
    rows.grow(first, (3, 1, 7))
    second = rows.add(new_row(6, (1, 2, 3)))
    rows.grow(second, (0, 2))
    rows.append(second, [4])
    rows.set_draft(second, [5, 6])
    third = rows.add(new_row(8, (21, 22, 23, 24, 25), prompt_logprobs=2))
    rows.grow(third, (5, 6))
    return rows


def test_chunks_drafts_and_single_tokens_are_one_case(three_rows, plan_row):
    plan = StepPlan([plan_row(5, 3, 4, wants=False), plan_row(6, 3, 3, max_draft=2), plan_row(8, 4, 1)])
    inputs = build_inputs(plan, three_rows)
    batch = inputs.arrays
    assert batch.token_ids.tolist() == [13, 14, 15, 16, 4, 5, 6, 25]
    assert batch.positions.tolist() == [3, 4, 5, 6, 3, 4, 5, 4]
    assert batch.slots.tolist() == [3 * 4 + 3, 4, 5, 6, 3, 2 * 4, 2 * 4 + 1, 6 * 4]
    assert batch.row_starts.tolist() == [0, 4, 7, 8]
    assert batch.context_lens.tolist() == [7, 6, 5]
    assert batch.row_ids.tolist() == [three_rows.find(request_id) for request_id in (5, 6, 8)]
    assert batch.logit_tokens.tolist() == [4, 5, 6, 7]
    assert (batch.max_new, batch.max_context) == (4, 7)
    assert inputs.places.tolist() == [1, 2]
    assert inputs.wanted.first.tolist() == [0, 3]
    assert inputs.wanted.drafts == [[5, 6], []]
    assert inputs.wanted.num_output.tolist() == [1, 0]
    assert inputs.prompts == []


def test_single_tokens_are_gathered_as_any_others(three_rows, plan_row):
    arrays = build_inputs(StepPlan([plan_row(6, 3, 1), plan_row(8, 4, 1)]), three_rows).arrays
    assert arrays.token_ids.tolist() == [4, 25]
    assert arrays.positions.tolist() == [3, 4]
    assert arrays.slots.tolist() == [3, 6 * 4]
    assert arrays.row_starts.tolist() == [0, 1, 2]
    assert arrays.logit_tokens.tolist() == [0, 1]
    assert arrays.keep_rows.tolist() == arrays.row_ids.tolist()
    assert not arrays.has_unknown


def test_a_token_that_a_step_in_flight_will_choose_is_named_by_its_row(three_rows, plan_row):
    row = three_rows.find(6)
    three_rows.use_drafts(np.array([row]), np.array([0]))  # a step without its drafts was launched
    inputs = build_inputs(StepPlan([plan_row(8, 4, 1), plan_row(6, 4, 1)]), three_rows)
    assert inputs.arrays.token_ids.tolist() == [25, -1 - row]
    assert inputs.arrays.has_unknown
    assert inputs.wanted.num_output.tolist() == [0, 2], "the one to come is counted"


def test_rows_with_drafts_keep_no_last_token(three_rows, plan_row):
    plan = StepPlan([plan_row(6, 3, 3, max_draft=2), plan_row(8, 4, 1)])
    nobody = len(three_rows.lengths)
    keep_rows = build_inputs(plan, three_rows).arrays.keep_rows
    assert keep_rows.tolist() == [nobody] * 3 + [three_rows.find(8)]


def test_what_rows_were_given_of_blocks_goes_along_once(three_rows, plan_row):
    plan = StepPlan([plan_row(6, 3, 1)])
    growth = build_inputs(plan, three_rows).arrays.growth
    assert growth.block_ids == [3, 1, 7, 0, 2, 5, 6]
    assert three_rows.block_tables.reshape(-1)[growth.places].tolist() == growth.block_ids
    assert build_inputs(plan, three_rows).arrays.growth.places == []


def test_fewer_drafts_than_are_at_hand_may_be_fed(three_rows, plan_row):
    inputs = build_inputs(StepPlan([plan_row(6, 3, 2, max_draft=1)]), three_rows)
    assert inputs.wanted.drafts == [[5]]
    assert inputs.arrays.token_ids.tolist() == [4, 5]


def test_more_drafts_than_are_at_hand_are_an_error_of_ours(three_rows, plan_row):
    with pytest.raises(RuntimeError, match="more drafts"):
        build_inputs(StepPlan([plan_row(6, 3, 4, max_draft=3)]), three_rows)


def test_nobody_wants_a_token(three_rows, plan_row):
    inputs = build_inputs(StepPlan([plan_row(5, 0, 3, wants=False)]), three_rows)
    assert inputs.places.tolist() == []
    assert inputs.num_wanted == 0
    assert inputs.arrays.logit_tokens.tolist() == []


@pytest.mark.parametrize(
    ("num_computed", "num_new", "wants", "tokens", "targets"),
    [
        (0, 3, False, [1, 2, 3], [22, 23, 24]),
        (3, 2, True, [1], [25]),
        (0, 5, True, [1, 2, 3, 4], [22, 23, 24, 25]),
    ],
)
def test_prompt_positions_that_predict_prompt_tokens(
    three_rows, plan_row, num_computed, num_new, wants, tokens, targets
):
    plan = StepPlan([plan_row(6, 3, 1), plan_row(8, num_computed, num_new, wants=wants)])
    inputs = build_inputs(plan, three_rows)
    (prompt,) = inputs.prompts
    assert list(prompt.tokens) == tokens
    assert prompt.targets == targets
    assert (prompt.place, prompt.num_top) == (1, 2)
    num_wanted = 1 + int(wants)
    assert inputs.num_wanted == num_wanted
    assert inputs.arrays.logit_tokens.tolist()[num_wanted:] == tokens


def test_a_prompt_computed_again_after_preemption_is_not_reported_again(rows, new_row, plan_row):
    row = rows.add(new_row(1, (1, 2, 3, 4, 5), num_prompt=3, prompt_logprobs=0))
    rows.grow(row, (0, 1))
    assert build_inputs(StepPlan([plan_row(1, 0, 5)]), rows).prompts == []


def test_a_plan_that_goes_on_is_told_from_the_step_before(rows, new_row, plan_row):
    for request_id, blocks in ((5, (3, 1)), (6, (0, 2))):
        rows.grow(rows.add(new_row(request_id, (1, 2, 3))), blocks)
    before = build_inputs(StepPlan([plan_row(6, 0, 3), plan_row(5, 1, 2)]), rows)
    plans = [plan_row(6, 3, 1), plan_row(5, 3, 1)]
    for _ in range(3):
        expected = build_inputs(StepPlan(plans), rows)
        inputs = build_inputs(StepPlan(plans, goes_on=True), rows, before)
        for name in ("token_ids", "positions", "slots", "row_ids", "row_starts", "context_lens", "logit_tokens"):
            assert getattr(inputs.arrays, name).tolist() == getattr(expected.arrays, name).tolist(), name
        assert (inputs.arrays.max_new, inputs.arrays.max_context) == (1, expected.arrays.max_context)
        assert inputs.wanted.num_output.tolist() == expected.wanted.num_output.tolist()
        before = inputs
        plans = [plan._replace(num_computed=plan.num_computed + 1) for plan in plans]
    assert build_inputs(StepPlan(plans), rows, before).arrays.positions.tolist() == [6, 6], "one that does not is not"


def test_tokens_beyond_a_rows_end_are_an_error_of_ours(rows, new_row, plan_row):
    rows.add(new_row(1))
    with pytest.raises(RuntimeError, match="beyond the end"):
        build_inputs(StepPlan([plan_row(1, 40, 5)]), rows)
