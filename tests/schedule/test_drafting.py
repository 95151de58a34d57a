"""Drafts take what nobody else wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from threefold.cost import StepShape
from threefold.draft.controller import FixedDrafts, RowDraft
from threefold.step import RowPlan, RowResult, StepPlan

MakeBench = Callable[..., Any]
Fed = Callable[[StepPlan], dict[int, int]]


class Asker(FixedDrafts):
    """Remembers what it was asked."""

    def __init__(self, k: int = 8) -> None:
        super().__init__(k)
        self.asked: list[tuple[list[RowDraft], StepShape]] = []

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:
        self.asked.append((list(rows), shape))
        return super().choose(rows, shape)


def with_drafts(num_drafts: int, token_id: int = 7) -> RowResult:
    return RowResult([token_id], survival=tuple(0.9**i for i in range(1, num_drafts + 1)), drafter="ngram")


def drafts(plan: StepPlan) -> dict[int, int]:
    return {row.request_id: row.max_draft for row in plan.rows}


def test_the_policy_sees_the_step_without_drafts(make_bench: MakeBench) -> None:
    asker = Asker()
    bench = make_bench(controller=asker)
    bench.add(6)
    bench.step(r0=with_drafts(2))
    bench.add(5)
    plan = bench.plan()

    rows, shape = asker.asked[0]
    assert rows == [RowDraft(0, (0.9, 0.9**2), "ngram", 7)]
    assert shape == StepShape(num_tokens=6, num_rows=2, kv_tokens=12, num_drafted=16)
    assert plan.rows[0] == RowPlan(0, 6, 3, 2, (plan.rows[0].new_blocks[0],), True, 8)
    assert plan.rows[1].max_draft == 0


def test_no_question_without_drafts_at_hand(make_bench: MakeBench) -> None:
    asker = Asker()
    bench = make_bench(controller=asker)
    bench.add(6)
    bench.step()
    bench.step()

    assert asker.asked == []


def test_drafts_take_only_the_budget_left_over(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(controller=Asker(), budget=10)
    bench.add(2)
    bench.add(2)
    bench.step(r0=with_drafts(6), r1=with_drafts(6))
    bench.add(4)
    plan = bench.plan()

    assert fed(plan) == {0: 5, 1: 1, 2: 4}
    assert drafts(plan) == {0: 4, 1: 0, 2: 0}


def test_beside_prompts_a_step_wants_no_more_tokens_than_its_graph_gives(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(controller=Asker(), max_wanted_beside_prompts=5)
    bench.add(2)
    bench.add(2)
    bench.step(r0=with_drafts(6), r1=with_drafts(6))
    bench.add(4)
    beside = bench.plan()
    assert drafts(beside) == {0: 2, 1: 0, 2: 0}, "three rows want a token each"


def test_without_prompts_nothing_bounds_what_a_step_wants(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), max_wanted_beside_prompts=5)
    bench.add(2)
    bench.add(2)
    bench.step(r0=with_drafts(6), r1=with_drafts(6))
    assert drafts(bench.plan()) == {0: 6, 1: 6}


def test_a_prompt_chunk_leaves_nothing_for_drafts(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), budget=8)
    bench.add(2)
    bench.step(r0=with_drafts(6))
    bench.add(30)

    assert drafts(bench.plan()) == {0: 0, 1: 0}


def test_no_drafts_in_the_middle_of_a_prompt(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), budget=8)
    bench.add(12)
    plan = bench.plan()

    assert (plan.rows[0].wants_token, plan.rows[0].next_draft) == (False, 0)
    bench.commit(plan)
    assert bench.plan().rows[0].next_draft == 8


@pytest.mark.parametrize(("max_total_tokens", "expected"), [(100, 6), (8, 3), (6, 1), (5, 0), (4, None)])
def test_never_past_the_end(make_bench: MakeBench, max_total_tokens: int, expected: int | None) -> None:
    """Three prompt tokens and one more; a step commits one token more than it accepts drafts."""
    bench = make_bench(controller=Asker())
    bench.add(3, max_total_tokens=max_total_tokens)
    first = bench.plan()
    bench.commit(first, r0=with_drafts(6))
    if expected is None:
        assert not bench.scheduler.has_work
        return
    plan = bench.plan()

    assert first.rows[0].next_draft == min(max_total_tokens - 5, 8)
    assert plan.rows[0].max_draft == expected


def test_the_request_caps_its_drafts(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker())
    bench.add(3, max_draft_tokens=2)
    bench.add(3, max_draft_tokens=0)
    plan = bench.plan()
    assert [row.next_draft for row in plan.rows] == [2, 0]
    bench.commit(plan, r0=with_drafts(5), r1=with_drafts(5))

    assert drafts(bench.plan()) == {0: 2, 1: 0}


def test_drafts_use_blocks_that_are_left_over(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), num_blocks=4)
    request = bench.add(3)
    bench.step(r0=with_drafts(8))
    plan = bench.plan()

    assert plan.rows[0].max_draft == 8
    assert len(request.block_ids) == 3
    assert plan.rows[0].new_blocks == tuple(request.block_ids[1:])


def test_drafts_stay_within_the_blocks_held_when_none_is_spare(make_bench: MakeBench) -> None:
    """The one block left is for the row's own next tokens; one draft fits into the block at hand."""
    bench = make_bench(controller=Asker(), num_blocks=2)
    request = bench.add(2)
    bench.step(r0=with_drafts(4))
    plan = bench.plan()

    assert (plan.rows[0].max_draft, plan.rows[0].new_blocks) == (1, ())
    assert len(request.block_ids) == 1


def test_drafts_take_no_block_while_somebody_waits_for_blocks(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), num_blocks=6)
    request = bench.add(2)
    bench.step(r0=with_drafts(8))
    bench.add(20)
    plan = bench.plan()

    assert drafts(plan) == {0: 1}
    assert len(request.block_ids) == 1
    bench.commit(plan, r0=with_drafts(4))
    bench.scheduler.abort(1)
    assert drafts(bench.plan()) == {0: 4}


def test_waiting_for_a_row_does_not_hold_drafts_back(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), num_blocks=6, max_num_seqs=1)
    bench.add(2)
    bench.step(r0=with_drafts(8))
    bench.add(2)

    assert drafts(bench.plan()) == {0: 8}


def test_nobody_is_preempted_for_drafts(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), num_blocks=3)
    bench.add(3)
    bench.add(3)
    bench.step(r0=with_drafts(8), r1=with_drafts(8))
    plan = bench.plan()

    assert drafts(plan) == {0: 0, 1: 0}
    assert bench.scheduler.stats().num_preemptions == 0


def test_drafts_are_gone_after_a_preemption(make_bench: MakeBench) -> None:
    bench = make_bench(controller=Asker(), num_blocks=5)
    bench.add(8)
    bench.add(4)
    for _ in range(6):
        bench.step(r1=with_drafts(3))
    bench.scheduler.abort(0)

    assert drafts(bench.plan()) == {1: 0}


@pytest.mark.parametrize("k", [0, 3])
def test_hits_do_not_depend_on_speculation(make_bench: MakeBench, k: int) -> None:
    bench = make_bench(controller=Asker(k))
    first = bench.add(range(10))
    bench.step(r0=with_drafts(k))
    bench.step(r0=RowResult([1, 2] if k else [1], num_drafted=k))
    again = bench.add(range(10))
    bench.plan()

    assert again.num_cached_tokens == 8
    assert again.block_ids[:2] == first.block_ids[:2]
