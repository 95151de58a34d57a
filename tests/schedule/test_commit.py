"""What a result does to requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from threefold.cost import StepShape
from threefold.draft.controller import FixedDrafts
from threefold.request import FinishReason, Request, RequestStatus, SamplingParams
from threefold.step import RowResult, StepPlan, StepResult, TokenDelta, TokenLogprobs, TokenRows

MakeBench = Callable[..., Any]


class Witness(FixedDrafts):
    """Remembers what it is told."""

    is_learning = True

    def __init__(self) -> None:
        super().__init__(4)
        self.seen: list[tuple[int, str, int, int]] = []
        self.steps: list[tuple[StepShape, float, float, int]] = []

    def observe(self, request_id: int, drafter: str, num_drafted: int, num_accepted: int) -> None:
        self.seen.append((request_id, drafter, num_drafted, num_accepted))

    def observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        self.steps.append((shape, forward_ms, draft_ms, num_committed))


def logprobs(*token_ids: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id, -1.0, 1, ()) for token_id in token_ids]


def test_the_first_delta_says_how_long_it_waited_and_what_was_cached(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(range(10))
    bench.step()
    bench.add(range(10))
    bench.now_s = 2.5
    bench.step()
    third = bench.step()

    assert third[1] == TokenDelta(1, [7])
    again = bench.add(range(10))
    bench.now_s = 4.0
    deltas = bench.step()
    assert again.arrival_s == 2.5
    assert deltas[2] == TokenDelta(2, [7], num_cached_tokens=8, queue_s=1.5)


def test_a_stop_token_ends(make_bench: MakeBench) -> None:
    bench = make_bench()
    request = bench.add(3, ends=[5, 6])
    bench.step()
    (delta,) = bench.step(r0=RowResult([6]))

    assert delta == TokenDelta(0, [6], FinishReason.STOP, stop_token_id=6)
    assert (request.status, request.finish_reason, request.stop_token_id) == (
        RequestStatus.FINISHED,
        FinishReason.STOP,
        6,
    )
    assert request.token_ids[3:] == [7, 6]
    assert not bench.scheduler.has_work
    assert bench.cache.num_held_blocks == 0


def test_a_stop_token_before_min_tokens_does_not_end(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(3, ends=[5], min_tokens=2)

    assert bench.step(r0=RowResult([5]))[0].finish_reason is None
    assert bench.step(r0=RowResult([5]))[0].finish_reason is None
    assert bench.step(r0=RowResult([5]))[0].finish_reason is FinishReason.STOP


def test_the_length_ends(make_bench: MakeBench) -> None:
    bench = make_bench()
    request = bench.add(3, max_total_tokens=5)

    assert bench.step()[0].finish_reason is None
    assert bench.step() == [TokenDelta(0, [7], FinishReason.LENGTH)]
    assert request.num_tokens == 5


def test_a_stop_token_in_the_last_place_is_a_stop(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(3, max_total_tokens=4, ends=[5])

    assert bench.step(r0=RowResult([5]))[0].finish_reason is FinishReason.STOP


def draft(bench: Any, num_drafts: int) -> None:
    """One step after which drafts are at hand."""
    bench.step(r0=RowResult([7], survival=(0.5,) * num_drafts, drafter="ngram"))


def test_accepted_drafts_advance_by_as_much(make_bench: MakeBench) -> None:
    witness = Witness()
    bench = make_bench(controller=witness)
    request = bench.add(3)
    draft(bench, 3)
    plan = bench.plan()
    assert (plan.rows[0].num_computed, plan.rows[0].num_new, plan.rows[0].max_draft) == (3, 4, 3)
    deltas = bench.scheduler.commit(plan, StepResult([RowResult([1, 2, 3], num_drafted=3)], 4.0, 0.5))

    assert deltas == [TokenDelta(0, [1, 2, 3], num_drafted=3, num_accepted=2)]
    assert request.num_computed == 3 + 1 + 2
    assert request.token_ids[3:] == [7, 1, 2, 3]
    assert witness.seen == [(0, "ngram", 3, 2)]
    assert witness.steps[-1] == (StepShape(4, 1, 7, 4), 4.0, 0.5, 3)
    stats = bench.scheduler.stats()
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 2)
    assert (stats.drafted_by, stats.accepted_by) == ({"ngram": 3}, {"ngram": 2})
    assert stats.accepted_per_position == [1, 1, 0]


def test_rejected_drafts_leave_no_trace(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Witness())
    request = bench.add(3)
    draft(bench, 4)
    bench.step(r0=RowResult([1], num_drafted=4))

    assert request.num_computed == 4
    assert (bench.plan().rows[0].num_computed, bench.plan().rows[0].max_draft) == (4, 0)


def test_fewer_drafts_may_be_verified_than_planned(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Witness())
    request = bench.add(3)
    draft(bench, 4)
    bench.step(r0=RowResult([1, 2], num_drafted=1))
    assert request.num_computed == 5
    bench.step()
    assert request.num_computed == 6


@pytest.mark.parametrize(
    ("limit", "ends", "expected", "reason"),
    [
        (100, [2], [1, 2], FinishReason.STOP),
        (6, [], [1, 2], FinishReason.LENGTH),
        (6, [2], [1, 2], FinishReason.STOP),
        (100, [4], [1, 2, 3, 4], FinishReason.STOP),
    ],
)
def test_what_comes_behind_an_end_is_cut(
    make_bench: MakeBench, limit: int, ends: list[int], expected: list[int], reason: FinishReason
) -> None:
    bench = make_bench(controller=Witness())
    request = bench.add(3, max_total_tokens=100, ends=ends)
    draft(bench, 3)
    plan = bench.plan()
    request.max_total_tokens = limit
    (delta,) = bench.commit(plan, r0=RowResult([1, 2, 3, 4], num_drafted=3))

    assert (delta.token_ids, delta.finish_reason) == (expected, reason)
    assert request.token_ids[4:] == expected
    assert request.num_computed <= request.num_tokens


def test_drafts_are_published_only_once_accepted(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Witness())
    request = bench.add([1, 2, 3])
    draft(bench, 4)
    bench.step(r0=RowResult([9], num_drafted=4))  # tokens 1 2 3 7 | 9; one full block
    twin = bench.add([1, 2, 3, 7, 9, 9, 9, 9, 9])
    bench.step(r0=RowResult([9]))
    assert twin.num_cached_tokens == 4
    bench.step(r0=RowResult([9], survival=(0.9, 0.9), drafter="ngram"))
    bench.step(r0=RowResult([9, 9, 9], num_drafted=2))  # 1 2 3 7 9 9 9 9 | 9 …: two full ones
    assert request.num_computed == 9
    third = bench.add([1, 2, 3, 7, 9, 9, 9, 9, 9])
    bench.step()

    assert third.num_cached_tokens == 8


def test_a_row_error_ends_that_request_alone(make_bench: MakeBench) -> None:
    bench = make_bench()
    broken, sound = bench.add(10), bench.add(10)
    deltas = bench.step(r0=RowResult([], error="NaN in the logits"))

    assert deltas[0] == TokenDelta(0, [], FinishReason.ERROR, error="NaN in the logits", queue_s=0.0)
    assert deltas[1].token_ids == [7]
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.block_ids == []
    assert bench.scheduler.stats().num_request_errors == 1
    plan = bench.plan()
    assert (plan.dropped, [row.request_id for row in plan.rows]) == ([0], [sound.request_id])


def test_a_row_without_a_token_is_an_error_not_a_hang(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(3)
    bench.step()

    assert bench.step(r0=RowResult([])) == [TokenDelta(0, [], FinishReason.ERROR, error="the step gave no token")]


def test_results_of_the_aborted_are_passed_over(make_bench: MakeBench) -> None:
    bench = make_bench()
    gone = bench.add(3)
    bench.add(3)
    plan = bench.plan()
    bench.scheduler.abort(0)
    deltas = bench.commit(plan)

    assert [delta.request_id for delta in deltas] == [1]
    assert gone.num_tokens == 3
    assert bench.plan().dropped == [0]


def test_prompt_logprobs_are_gathered_for_the_first_delta(make_bench: MakeBench) -> None:
    bench = make_bench(budget=4, max_num_seqs=4)
    bench.add([1, 2, 3, 4, 5, 6], prompt_logprobs=0, logprobs=0)
    assert bench.step(r0=RowResult([], prompt_logprobs=logprobs(2, 3, 4))) == []
    (delta,) = bench.step(r0=RowResult([7], logprobs=logprobs(7), prompt_logprobs=logprobs(5, 6)))

    assert delta.prompt_logprobs == logprobs(2, 3, 4, 5, 6)
    assert delta.logprobs == logprobs(7)
    assert bench.step(r0=RowResult([8], logprobs=logprobs(8))) == [TokenDelta(0, [8], logprobs=logprobs(8))]


def test_a_preempted_request_does_not_tell_its_prompt_twice(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5)
    bench.add(8)
    twice = bench.add(4, prompt_logprobs=0)
    told = bench.step(r1=RowResult([7], prompt_logprobs=logprobs(1, 1, 1)))
    for _ in range(5):
        bench.step()
    bench.scheduler.abort(0)
    (delta,) = bench.step(r1=RowResult([7], prompt_logprobs=logprobs(1, 1, 1)))

    assert told[1].prompt_logprobs == logprobs(1, 1, 1)
    assert twice.num_preemptions == 1
    assert delta == TokenDelta(1, [7])


def test_logprobs_are_cut_with_the_tokens(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Witness())
    bench.add(3, ends=[2], logprobs=0)
    draft(bench, 3)
    (delta,) = bench.step(r0=RowResult([1, 2, 3], num_drafted=3, logprobs=logprobs(1, 2, 3)))

    assert delta.logprobs == logprobs(1, 2)


def test_a_result_of_another_size_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(3)
    with pytest.raises(ValueError, match="shorter"):
        bench.scheduler.commit(bench.plan(), StepResult([]))


def test_faults_of_drafters_are_counted(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(3)
    bench.scheduler.commit(bench.plan(), StepResult([RowResult([1])], num_draft_faults=2))

    assert bench.scheduler.stats().num_draft_faults == 2


def test_what_the_next_plan_does_not_need_comes_behind_it(make_bench: MakeBench) -> None:
    witness = Witness()
    bench = make_bench(controller=witness)
    going, ending = bench.add(3), bench.add(3, max_total_tokens=5)
    draft(bench, 3)
    plan = bench.plan()
    results = [RowResult([1, 2, 3], num_drafted=3, survival=(0.9,), drafter="ngram"), RowResult([8])]
    settled = bench.scheduler.settle(plan, StepResult(results))
    assert (going.num_computed, going.token_ids[3:], ending.finish_reason) == (6, [7, 1, 2, 3], FinishReason.LENGTH)
    assert (ending.block_ids, witness.seen, len(witness.steps)) == ([], [(0, "ngram", 3, 2)], 2)
    ahead = bench.plan()
    assert [(row.num_computed, row.num_new, row.max_draft) for row in ahead.rows] == [(6, 2, 1)]
    assert (ahead.dropped, bench.scheduler.stats().num_steps) == ([1], 1)
    assert bench.scheduler.report(settled) == [
        TokenDelta(0, [1, 2, 3], num_drafted=3, num_accepted=2),
        TokenDelta(1, [8], FinishReason.LENGTH),
    ]
    stats = bench.scheduler.stats()
    assert (stats.num_steps, stats.generated_tokens, stats.accepted_by) == (2, 6, {"ngram": 2})


@pytest.mark.parametrize(("num_blocks", "num_found"), [(64, 4), (5, 8)])
def test_blocks_are_findable_at_once_where_somebody_may_be_preempted(
    make_bench: MakeBench, num_blocks: int, num_found: int
) -> None:
    """With blocks to spare nobody need wait for it; whoever is preempted finds its blocks again."""
    bench = make_bench(num_blocks)
    first, _ = bench.add(6), bench.add(6)
    bench.step()
    bench.step()
    settled = bench.scheduler.settle(bench.plan(), StepResult([RowResult([7]), RowResult([7])]))
    assert first.num_computed == 8
    found = []
    for _ in range(2):
        alike = Request(9, first.token_ids, SamplingParams(), max_total_tokens=20, end_token_ids=frozenset())
        found.append(bench.cache.match(alike))
        bench.cache.free(alike)
        bench.scheduler.report(settled)
    assert found == [num_found, 8]


@pytest.mark.parametrize("is_overlapped", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_rows_with_a_token_each_come_to_the_same_told_either_way(
    make_bench: MakeBench, seed: int, is_overlapped: bool
) -> None:
    def run(*, is_lazy: bool) -> tuple[list[object], Any]:
        dice = random.Random(seed)
        witness = Witness()
        witness.appetites = lambda _: {}  # type: ignore[method-assign]
        bench = make_bench(num_blocks=80, controller=witness, max_num_seqs=6, budget=64)
        seen: list[object] = []
        ahead: StepPlan | None = None
        for _ in range(120):
            if dice.random() < 0.3:
                bench.add(dice.randint(1, 9), max_total_tokens=dice.randint(10, 40), ends=[9], min_tokens=2)
            plan = ahead or bench.scheduler.plan()
            if plan is None:
                continue
            ahead = bench.scheduler.plan_ahead(plan) if is_overlapped else None
            seen.append(list(plan.rows))
            if dice.random() < 0.1:
                seen.append(bench.scheduler.abort(dice.choice(plan.rows).request_id))
            token_ids = [[dice.randint(1, 20)] for _ in plan.rows]
            assert all(row.wants_token for row in plan.rows)
            rows = TokenRows(token_ids) if is_lazy else [RowResult(ids) for ids in token_ids]
            seen.append(bench.scheduler.commit(plan, StepResult(rows, forward_ms=1.0)))
            bench.scheduler.check_integrity()
        return [seen, witness.steps], bench.scheduler.stats()

    lazy, plain = run(is_lazy=True), run(is_lazy=False)
    assert lazy == plain
    assert lazy[1].generated_tokens > 200
    told = [entry for entries in lazy[0][0] if isinstance(entries, list) for entry in entries]
    reasons = {entry.finish_reason for entry in told if isinstance(entry, TokenDelta)}
    assert reasons == {None, FinishReason.STOP, FinishReason.LENGTH}
