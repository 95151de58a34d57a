"""Planning behind a step in flight; tests/engine/test_core.py and tests/sim run whole engines that way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from threefold.draft.controller import FixedDrafts, NoDrafts
from threefold.request import FinishReason
from threefold.step import RowResult, StepPlan


def fed_of(plan: StepPlan | None) -> list[tuple[int, int, int, bool]]:
    assert plan is not None
    return [(row.request_id, row.num_computed, row.num_new, row.wants_token) for row in plan.rows]


def test_rows_are_fed_the_token_that_is_on_its_way(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench()
    bench.add(4)
    bench.add(6)
    first = bench.plan()
    ahead = bench.scheduler.plan_ahead(first)
    assert fed_of(ahead) == [(0, 4, 1, True), (1, 6, 1, True)]
    assert [row.new_blocks for row in ahead.rows] == [(3,), ()], "token 4 of request 0 needs a block, 6 of 1 has one"
    bench.scheduler.check_integrity()
    assert [delta.token_ids for delta in bench.commit(first)] == [[7], [7]]
    assert fed_of(bench.scheduler.plan_ahead(ahead)) == [(0, 5, 1, True), (1, 7, 1, True)]


def test_a_prompt_goes_on_where_its_last_chunk_will_end(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench(budget=8, max_num_seqs=4)
    bench.add(3)
    bench.add(12)
    first = bench.plan()
    assert fed_of(first) == [(0, 0, 3, True), (1, 0, 5, False)]
    ahead = bench.scheduler.plan_ahead(first)
    assert fed_of(ahead) == [(0, 3, 1, True), (1, 5, 7, True)]


def test_a_row_that_will_end_by_length_is_left_out_and_others_may_join(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench()
    bench.add(4, max_total_tokens=5)
    bench.add(4)
    first = bench.plan()
    bench.add(2)
    ahead = bench.scheduler.plan_ahead(first)
    assert fed_of(ahead) == [(1, 4, 1, True), (2, 0, 2, True)]
    assert [row.request_id for row in ahead.new_rows] == [2]
    assert bench.commit(first)[0].finish_reason is FinishReason.LENGTH


def test_nothing_is_left_behind_the_last_tokens(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench()
    bench.add(4, max_total_tokens=5)
    assert bench.scheduler.plan_ahead(bench.plan()) is None


def test_a_stop_token_ends_a_row_that_runs_once_more(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench()
    request = bench.add(4, ends=[9])
    first = bench.plan()
    ahead = bench.scheduler.plan_ahead(first)
    assert bench.commit(first, r0=RowResult([9]))[0].finish_reason is FinishReason.STOP
    assert request.block_ids == []
    assert bench.commit(ahead) == []
    assert bench.scheduler.stats().generated_tokens == 1
    assert not bench.scheduler.has_work


def test_aborted_while_in_flight(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench()
    bench.add(4)
    bench.add(4)
    first = bench.plan()
    bench.scheduler.abort(0)
    ahead = bench.scheduler.plan_ahead(first)
    assert fed_of(ahead) == [(1, 4, 1, True)]
    assert ahead.dropped == [0]


@pytest.mark.parametrize("params", [{"logprobs": 1}, {"presence_penalty": 1}, {"prompt_logprobs": 0}])
def test_requests_that_need_the_result_keep_steps_in_order(make_bench: Callable, params: dict[str, int]) -> None:  # type: ignore[type-arg]
    bench = make_bench()
    bench.add(4)
    bound = bench.add(4, max_total_tokens=5, **params)
    first = bench.plan()
    assert bench.scheduler.plan_ahead(first) is None
    bench.commit(first)
    assert bound.is_finished
    assert fed_of(bench.scheduler.plan_ahead(bench.plan())) == [(0, 5, 1, True)]


@pytest.mark.parametrize(("policy", "can"), [(NoDrafts(), True), (FixedDrafts(2), False)])
def test_drafts_asked_for_keep_steps_in_order(make_bench: Callable, policy: FixedDrafts, can: bool) -> None:  # type: ignore[type-arg]
    bench = make_bench(controller=policy)
    bench.add(4)
    assert (bench.scheduler.plan_ahead(bench.plan()) is not None) == can


def test_without_blocks_for_all_nothing_is_changed(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench(num_blocks=3)
    first, second = bench.add(4), bench.add(4)
    plan = bench.plan()
    assert bench.cache.num_free_blocks == 1
    assert bench.scheduler.plan_ahead(plan) is None
    assert (len(first.block_ids), len(second.block_ids), bench.cache.num_free_blocks) == (1, 1, 1)
    bench.commit(plan)
    assert bench.plan().rows[0].new_blocks
    assert second.num_preemptions == 1


def test_drafts_are_asked_for_ahead_too_with_the_token_on_its_way_counted(make_bench: Callable) -> None:  # type: ignore[type-arg]
    class Asking(FixedDrafts):
        is_asking = False

        def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
            return super().appetites(request_ids) if self.is_asking else {}

    policy = Asking(4)
    bench = make_bench(controller=policy)
    bench.add(4)
    bench.add(4, max_total_tokens=8)
    first = bench.plan()
    policy.is_asking = True
    ahead = bench.scheduler.plan_ahead(first)
    assert [row.next_draft for row in ahead.rows] == [4, 1], (
        "of four tokens two are said by the time, one is a step's own"
    )
    assert bench.scheduler.plan_ahead(ahead) is None, "what was asked for must come first"


def test_it_is_said_when_all_rows_go_on_and_none_came_or_left(make_bench: Callable) -> None:  # type: ignore[type-arg]
    bench = make_bench(budget=8)
    bench.add(3)
    bench.add(7, max_total_tokens=9)
    first = bench.plan()  # the second prompt's last tokens are not in it
    assert not first.goes_on
    second = bench.scheduler.plan_ahead(first)
    assert not second.goes_on, "a row without a token is not fed it"
    bench.commit(first)
    third = bench.scheduler.plan_ahead(second)
    assert third.goes_on
    assert fed_of(third) == [(0, 4, 1, True), (1, 7, 1, True)]
    bench.commit(second)
    fourth = bench.scheduler.plan_ahead(third)
    assert fed_of(fourth) == [(0, 5, 1, True)]
    assert not fourth.goes_on, "one has left"
    bench.add(2)
    bench.commit(third)
    fifth = bench.scheduler.plan_ahead(fourth)
    assert fed_of(fifth) == [(0, 6, 1, True), (2, 0, 2, True)]
    assert not fifth.goes_on, "one has come"
