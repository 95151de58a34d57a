"""The executor without tensors."""

from __future__ import annotations

import pytest

from threefold.errors import StepMemoryError
from threefold.request import SamplingParams
from threefold.step import NewRow, RowPlan, RowResult, StepPlan, TokenLogprobs
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor
from threefold.testing.fake_model import FakeModel

PROMPT = (1, 2, 3, 4)


def new_row(request_id: int = 0, ends: frozenset[int] = frozenset(), **params: object) -> NewRow:
    wish = SamplingParams(**params)  # type: ignore[arg-type]
    return NewRow(request_id, PROMPT, len(PROMPT), wish, ends, seed=0)


def run(executor: FakeExecutor, plan: RowPlan, *new_rows: NewRow) -> RowResult:
    return executor.run(StepPlan([plan], list(new_rows))).rows[0]


def whole(next_draft: int = 0, request_id: int = 0) -> RowPlan:
    return RowPlan(request_id, 0, 4, 0, (0,), True, next_draft)


def answer(num_tokens: int) -> list[int]:
    return FakeModel().answer(PROMPT, max_total_tokens=4 + num_tokens)


def test_a_chunk_gives_nothing_and_the_end_of_the_prompt_a_token() -> None:
    executor = FakeExecutor()

    assert run(executor, RowPlan(0, 0, 3, 0, (0,), False, 0), new_row()) == RowResult([])
    assert run(executor, RowPlan(0, 3, 1, 0, (), True, 0)) == RowResult(answer(1))
    assert run(executor, RowPlan(0, 4, 1, 0, (), True, 0)) == RowResult(answer(2)[1:])


def test_right_drafts_are_all_accepted() -> None:
    executor = FakeExecutor(drafts=FakeDrafts(1.0))
    first = run(executor, whole(next_draft=3), new_row())
    assert (first.survival, first.drafter) == ((1.0, 1.0, 1.0), "fake")

    second = run(executor, RowPlan(0, 4, 4, 3, (), True, 0))
    assert (second.token_ids, second.num_drafted, second.survival) == (answer(5)[1:], 3, ())


def test_wrong_drafts_cost_nothing_but_time() -> None:
    executor = FakeExecutor(drafts=FakeDrafts(0.0))
    run(executor, whole(next_draft=3), new_row())

    assert run(executor, RowPlan(0, 4, 4, 3, (), True, 0)).token_ids == answer(2)[1:]


def test_only_as_many_drafts_as_planned_are_looked_at() -> None:
    executor = FakeExecutor(drafts=FakeDrafts(1.0))
    run(executor, whole(next_draft=5), new_row())

    assert run(executor, RowPlan(0, 4, 3, 2, (), True, 0)).token_ids == answer(4)[1:]


def test_survival_is_the_accuracy_to_the_power_of_the_length() -> None:
    executor = FakeExecutor(drafts=FakeDrafts(0.5))

    assert run(executor, whole(next_draft=2), new_row()).survival == (0.5, 0.25)


def test_ragged_drafts_differ_in_length() -> None:
    drafts = FakeDrafts(1.0, is_ragged=True)

    assert {len(drafts.propose(FakeModel(), state, 4)) for state in range(100)} == {0, 1, 2, 3, 4}


def test_end_tokens_are_kept_away_until_min_tokens() -> None:
    expected = answer(1)[0]
    shunned = run(FakeExecutor(), whole(), new_row(ends=frozenset({expected}), min_tokens=1, max_tokens=5))
    allowed = run(FakeExecutor(), whole(), new_row(ends=frozenset({expected}), min_tokens=0, max_tokens=5))

    assert shunned.token_ids != [expected]
    assert allowed.token_ids == [expected]


def test_logprobs_are_reported_as_asked() -> None:
    executor = FakeExecutor()
    chunk = run(executor, RowPlan(0, 0, 2, 0, (0,), False, 0), new_row(logprobs=2, prompt_logprobs=0))
    rest = run(executor, RowPlan(0, 2, 2, 0, (), True, 0))

    assert chunk.prompt_logprobs == [TokenLogprobs(2, -0.5, 1, ())]
    assert [entry.token_id for entry in rest.prompt_logprobs or ()] == [3, 4]
    assert rest.logprobs is not None
    assert [entry.token_id for entry in rest.logprobs] == rest.token_ids
    assert rest.logprobs[0].top[0] == (rest.token_ids[0], -0.5)
    assert len(rest.logprobs[0].top) == 2


def test_a_row_fault_happens_once_when_its_row_runs() -> None:
    executor = FakeExecutor()
    executor.row_faults[1] = "broken"
    assert run(executor, whole(), new_row(0)).error is None
    assert run(executor, whole(request_id=1), new_row(1)) == RowResult([], error="broken")
    assert executor.row_faults == {}


def test_a_step_fault_happens_once() -> None:
    executor = FakeExecutor()
    executor.step_fault = RuntimeError("gone")
    with pytest.raises(RuntimeError, match="gone"):
        run(executor, whole(), new_row())

    assert run(executor, whole(), new_row()).token_ids == answer(1)


def test_dropped_rows_are_forgotten_first() -> None:
    executor = FakeExecutor()
    run(executor, whole(), new_row())
    again = executor.run(StepPlan([whole()], [new_row()], [0]))

    assert again.rows[0].token_ids == answer(1)
    with pytest.raises(KeyError):
        executor.run(StepPlan([], [], [5]))


def test_a_step_reports_the_time_it_pretends_to_take() -> None:
    executor = FakeExecutor(step_s=0.001)

    assert executor.run(StepPlan([whole()], [new_row()])).forward_ms == 1.0
    executor.close()
    assert executor.is_closed


def test_results_come_in_the_order_of_launches() -> None:
    executor = FakeExecutor(step_s=0.002)
    executor.launch(StepPlan([whole()], [new_row()]))
    executor.launch(StepPlan([RowPlan(0, 4, 1, 0, (1,), True, 0)]))
    assert [executor.collect().rows[0].token_ids for _ in range(2)] == [answer(2)[:1], answer(2)[1:]]


def test_memory_that_is_not_there() -> None:
    executor = FakeExecutor()
    executor.max_step_tokens = 3
    with pytest.raises(StepMemoryError, match="4 tokens"):
        executor.launch(StepPlan([whole()], [new_row()]))
    executor.max_step_tokens = 4
    assert executor.run(StepPlan([whole()])).rows[0].token_ids == answer(1), "the row was set up"
