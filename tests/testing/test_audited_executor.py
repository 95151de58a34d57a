"""The auditor must find what is wrong, or the simulation proves nothing."""

from __future__ import annotations

import pytest

from threefold.request import SamplingParams
from threefold.step import NewRow, RowPlan, StepPlan
from threefold.testing.audited_executor import AuditedExecutor
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor

NO_ROWS: list[NewRow] = []


@pytest.fixture
def executor() -> AuditedExecutor:
    """Eight blocks of two tokens, eight tokens a step."""
    return AuditedExecutor(FakeExecutor(drafts=FakeDrafts(0.0)), 8, 2, 8)


def row(request_id: int, tokens: tuple[int, ...], salt: str = "") -> NewRow:
    return NewRow(request_id, tokens, len(tokens), SamplingParams(), frozenset(), seed=0, cache_salt=salt)


def begin(executor: AuditedExecutor, next_draft: int = 0) -> None:
    """Request 0 with four tokens in blocks 3 and 5."""
    executor.run(StepPlan([RowPlan(0, 0, 4, 0, (3, 5), True, next_draft)], [row(0, (1, 2, 3, 4))]))


def test_a_sound_life_passes(executor: AuditedExecutor) -> None:
    begin(executor, next_draft=1)
    executor.run(StepPlan([RowPlan(0, 4, 2, 1, (0,), True, 0)]))
    executor.run(StepPlan([RowPlan(0, 5, 1, 0, (), True, 0)]))
    shared = RowPlan(1, 4, 1, 0, (3, 5, 1), True, 0)
    result = executor.run(StepPlan([shared], [row(1, (1, 2, 3, 4, 9))], [0]))

    assert len(result.rows[0].token_ids) == 1
    executor.close()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (StepPlan([]), "a plan without rows"),
        (StepPlan([RowPlan(0, 4, 9, 8, (0, 1, 2, 4, 6), True, 0)]), "over the budget"),
        (StepPlan([RowPlan(0, 4, 1, 0, (0,), True, 0), RowPlan(0, 4, 1, 0, (), True, 0)]), "a row twice"),
        (StepPlan([RowPlan(0, 4, 1, 0, (0,), True, 0)], [row(0, (1,))]), "a new row that is there already"),
        (StepPlan([RowPlan(0, 4, 1, 0, (3,), True, 0)]), "a block twice in one row"),
        (StepPlan([RowPlan(0, 4, 1, 0, (8,), True, 0)]), "no such block"),
        (StepPlan([RowPlan(0, 3, 2, 0, (0,), True, 0)]), "num_computed is not where the row stands"),
        (StepPlan([RowPlan(0, 4, 0, 0, (0,), True, 0)]), "a row without a known token"),
        (StepPlan([RowPlan(0, 4, 2, 0, (0,), True, 0)]), "more tokens than the row has"),
        (StepPlan([RowPlan(0, 4, 1, 0, (0,), False, 0)]), "wants_token is wrong"),
        (StepPlan([RowPlan(0, 4, 2, 1, (0,), True, 0)]), "more drafts than were asked for"),
        (StepPlan([RowPlan(0, 4, 1, 0, (), True, 0)]), "no slots for the step"),
        (StepPlan([RowPlan(1, 0, 2, 0, (0,), False, 1)], [row(1, (1, 2, 3))]), "drafts in the middle of a prompt"),
        (StepPlan([RowPlan(1, 2, 1, 0, (0, 1), True, 0)], [row(1, (1, 2, 3))]), "wrong KV at 0"),
        (StepPlan([RowPlan(1, 2, 1, 0, (5, 1), True, 0)], [row(1, (3, 4, 3))]), "wrong KV at 0"),
        (StepPlan([RowPlan(1, 2, 1, 0, (3, 1), True, 0)], [row(1, (1, 2, 3), "salt")]), "wrong KV at 0"),
        (
            StepPlan([RowPlan(0, 4, 1, 0, (0,), True, 0), RowPlan(1, 0, 1, 0, (0,), True, 0)], [row(1, (9,))]),
            "two rows write to one slot",
        ),
    ],
)
def test_each_fault_of_a_plan_is_named(executor: AuditedExecutor, plan: StepPlan, message: str) -> None:
    begin(executor)
    with pytest.raises(AssertionError, match=message):
        executor.run(plan)


def test_kv_of_a_rejected_draft_is_no_kv(executor: AuditedExecutor) -> None:
    begin(executor, next_draft=1)
    result = executor.run(StepPlan([RowPlan(0, 4, 2, 1, (0,), True, 0)])).rows[0]
    assert len(result.token_ids) == 1, "the draft was rejected"
    with pytest.raises(AssertionError, match="num_computed"):
        executor.run(StepPlan([RowPlan(0, 6, 1, 0, (1,), True, 0)]))


def test_a_block_written_by_another_is_noticed(executor: AuditedExecutor) -> None:
    begin(executor)
    executor.run(StepPlan([RowPlan(1, 0, 2, 0, (3,), True, 0)], [row(1, (8, 9))]))
    with pytest.raises(AssertionError, match="wrong KV at 0"):
        executor.run(StepPlan([RowPlan(0, 4, 1, 0, (0,), True, 0)]))


def test_overlapped_steps_pass_and_read_what_is_on_its_way(executor: AuditedExecutor) -> None:
    executor.launch(StepPlan([RowPlan(0, 0, 4, 0, (3, 5), True, 0)], [row(0, (1, 2, 3, 4))]))
    executor.launch(StepPlan([RowPlan(0, 4, 1, 0, (1,), True, 0)]))
    executor.collect()
    executor.launch(StepPlan([RowPlan(0, 5, 1, 0, (), True, 0)]))
    executor.collect()
    assert len(executor.collect().rows[0].token_ids) == 1


def test_overlapped_a_row_is_not_fed_what_nobody_chooses(executor: AuditedExecutor) -> None:
    executor.launch(StepPlan([RowPlan(0, 0, 4, 0, (3, 5), True, 0)], [row(0, (1, 2, 3, 4))]))
    with pytest.raises(AssertionError, match="more tokens than the row has"):
        executor.launch(StepPlan([RowPlan(0, 4, 2, 0, (1,), True, 0)]))


def test_overlapped_blocks_given_out_anew_are_read_as_what_they_hold(executor: AuditedExecutor) -> None:
    executor.launch(StepPlan([RowPlan(0, 0, 4, 0, (3, 5), True, 0)], [row(0, (1, 2, 3, 4))]))
    executor.launch(StepPlan([RowPlan(0, 4, 1, 0, (1,), True, 0)]))
    executor.collect()
    with pytest.raises(AssertionError, match="wrong KV at 2"):  # block 1 holds request 0's fifth token, on its way
        executor.launch(StepPlan([RowPlan(1, 3, 1, 0, (3, 1), True, 0)], [row(1, (1, 2, 3, 4))], [0]))


def test_three_steps_at_once_are_too_many(executor: AuditedExecutor) -> None:
    for num in (0, 4):
        executor.launch(
            StepPlan([RowPlan(0, num, 4 if not num else 1, 0, (num, num + 1), True, 0)],
                     [row(0, (1, 2, 3, 4))] if not num else [])
        )  # fmt: skip
    with pytest.raises(AssertionError, match="more than two"):
        executor.launch(StepPlan([RowPlan(0, 5, 1, 0, (), True, 0)]))
