"""Who runs, and how many tokens of whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from threefold.cache.manager import CacheManager
from threefold.draft.controller import NoDrafts
from threefold.errors import ConfigError
from threefold.request import FinishReason, RequestStatus
from threefold.schedule.scheduler import Scheduler
from threefold.step import RowPlan, RowResult, StepPlan

MakeBench = Callable[..., Any]
Fed = Callable[[StepPlan], dict[int, int]]


def test_nothing_to_do_is_no_plan(make_bench: MakeBench) -> None:
    bench = make_bench()

    assert not bench.scheduler.has_work
    assert bench.scheduler.plan() is None


def test_a_prompt_then_token_by_token(make_bench: MakeBench) -> None:
    bench = make_bench()
    request = bench.add(6)
    plan = bench.plan()

    assert plan.rows == [RowPlan(0, 0, 6, 0, tuple(request.block_ids), True, 0)]
    assert [row.request_id for row in plan.new_rows] == [0]
    assert plan.new_rows[0].token_ids == (1000,) * 6
    bench.commit(plan)
    for num_computed in (6, 7):
        plan = bench.plan()
        assert plan.rows == [RowPlan(0, num_computed, 1, 0, (), True, 0)]
        assert (plan.new_rows, plan.dropped) == ([], [])
        bench.commit(plan)
    plan = bench.plan()  # the ninth token starts a new block
    assert plan.rows == [RowPlan(0, 8, 1, 0, (request.block_ids[2],), True, 0)]


def test_a_long_prompt_comes_in_chunks_of_the_budget(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(budget=8)
    request = bench.add(19)
    chunks = []
    for _ in range(3):
        plan = bench.plan()
        chunks.append((fed(plan)[0], plan.rows[0].wants_token, len(plan.rows[0].new_blocks)))
        assert bench.commit(plan) == [] or plan.rows[0].wants_token

    assert chunks == [(8, False, 5), (8, False, 0), (3, True, 0)], "blocks for the whole prompt come at once"
    assert request.num_output_tokens == 1


def test_chunks_are_capped_by_the_threshold(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(budget=20, max_chunk=6)
    bench.add(30)
    bench.add(30)
    bench.add(30)

    assert fed(bench.plan()) == {0: 6, 1: 6, 2: 6}


def test_who_generates_is_never_starved_by_a_prompt(make_bench: MakeBench, fed: Fed) -> None:
    """A prompt with a better priority stands before rows that generate, but leaves each of them its token."""
    bench = make_bench(budget=8, policy="priority")
    for _ in range(3):
        bench.add(1, priority=1)
    bench.step()
    bench.add(40, priority=0)

    assert fed(bench.plan()) == {0: 1, 1: 1, 2: 1, 3: 5}
    plan = bench.plan()
    assert [row.request_id for row in plan.rows] == [3, 0, 1, 2]
    assert fed(plan) == {3: 5, 0: 1, 1: 1, 2: 1}


def test_running_requests_come_before_waiting_ones(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(budget=8)
    bench.add(12)
    bench.add(12)

    plan = bench.plan()
    assert fed(plan) == {0: 8}
    bench.commit(plan)
    assert fed(bench.plan()) == {0: 4, 1: 4}


def test_no_more_rows_than_max_num_seqs(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(max_num_seqs=2)
    for _ in range(3):
        bench.add(2)
    plan = bench.plan()
    assert fed(plan) == {0: 2, 1: 2}
    bench.commit(plan)
    bench.scheduler.abort(0)
    plan = bench.plan()
    assert fed(plan) == {1: 1, 2: 2}
    assert plan.dropped == [0]


def test_admission_by_priority_then_arrival(make_bench: MakeBench) -> None:
    bench = make_bench(policy="priority", max_num_seqs=2)
    for priority in (3, 1, 2, 1):
        bench.add(2, priority=priority)

    assert [row.request_id for row in bench.plan().rows] == [1, 3]


def test_preemption_takes_the_newest_and_brings_it_back_with_all_its_tokens(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5)
    old, new = bench.add(8), bench.add(4)  # two blocks and one; one spare for each when the second came
    bench.step()
    for _ in range(3):
        bench.step()
    assert (len(old.block_ids), len(new.block_ids)) == (3, 2)
    bench.step()  # the old one has 13 tokens, the new one 9: both need a block, none is left
    plan = bench.plan()

    assert [row.request_id for row in plan.rows] == [0]
    assert (new.status, new.num_computed, new.block_ids) == (RequestStatus.WAITING, 0, [])
    assert plan.dropped == [1]
    stats = bench.scheduler.stats()
    assert (stats.num_preemptions, new.num_preemptions, stats.num_waiting) == (1, 1, 1)
    bench.commit(plan)
    assert [row.request_id for row in bench.plan().rows] == [0], "no blocks for it yet"
    bench.scheduler.abort(0)
    plan = bench.plan()
    assert plan.new_rows[0].token_ids == (*[1001] * 4, *[7] * 5)
    assert plan.new_rows[0].num_prompt_tokens == 4
    assert plan.dropped == [0]


def test_under_the_priority_policy_the_least_urgent_gives_way(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5, policy="priority")
    relaxed, urgent = bench.add(8, priority=5), bench.add(4, priority=0)
    for _ in range(5):
        bench.step()
    plan = bench.plan()

    assert relaxed.num_preemptions == 1
    assert urgent.num_preemptions == 0
    assert [row.request_id for row in plan.rows] == [1]


def test_the_last_row_can_only_give_way_itself(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=4)
    bench.add(7)
    bench.add(3)
    bench.step()  # 3 blocks held; the first will fit until 8 tokens, the second until 4
    bench.step()
    bench.step()  # the first took the last block; the second stands at 5 tokens

    assert bench.scheduler.stats().num_preemptions == 1
    assert [row.request_id for row in bench.plan().rows] == [0]


def test_what_a_preemption_frees_is_not_for_newcomers(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5)
    bench.add(8)
    bench.add(4)
    for _ in range(5):
        bench.step()
    small = bench.add(1)
    bench.plan()

    assert bench.scheduler.stats().num_preemptions == 1
    assert small.status is RequestStatus.WAITING


def test_recomputed_tokens_are_those_that_the_cache_had_lost(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5)
    bench.add(8)
    new = bench.add(4)
    for _ in range(6):
        bench.step()
    assert bench.scheduler.stats().recomputed_tokens == 0, "nothing is computed again yet"
    bench.scheduler.abort(0)
    bench.plan()

    stats = bench.scheduler.stats()
    assert new.num_computed == 4, "one of its two full blocks was overwritten"
    assert stats.recomputed_tokens == 8 - 4
    assert (stats.prefix_queries, stats.prefix_hits) == (12, 0), "hits of the preempted are no merit"


def test_two_giants_cannot_lock_each_other_out(make_bench: MakeBench, fed: Fed) -> None:
    """The second is not begun before all of its prompt fits."""
    bench = make_bench(num_blocks=10, budget=8)
    bench.add(24, max_total_tokens=26)
    bench.add(24, max_total_tokens=26)
    seen = []
    while bench.scheduler.has_work:
        plan = bench.plan()
        seen.append(sorted(fed(plan)))
        bench.commit(plan)

    assert seen == [[0], [0], [0], [0], [1], [1], [1], [1]]
    assert bench.scheduler.stats().num_preemptions == 0


def test_one_that_fits_the_cache_exactly_runs_alone(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=3)
    request = bench.add(8, max_total_tokens=12)
    while bench.scheduler.has_work:
        bench.step()

    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_preemptions == 0
    assert bench.scheduler.capacity_tokens == 12


def test_abort_frees_at_once_wherever_the_request_stands(make_bench: MakeBench) -> None:
    bench = make_bench(budget=8, max_num_seqs=1)
    running, waiting = bench.add(20), bench.add(4)
    bench.step()

    assert bench.scheduler.abort(waiting.request_id)
    assert bench.scheduler.abort(running.request_id)
    assert not bench.scheduler.abort(running.request_id)
    assert not bench.scheduler.abort(99)
    assert running.finish_reason is waiting.finish_reason is FinishReason.ABORT
    assert running.is_finished
    assert waiting.is_finished
    assert bench.cache.num_free_blocks == 64
    assert not bench.scheduler.has_work
    bench.scheduler.check_integrity()


def test_an_aborted_request_leaves_its_prefix_in_the_cache(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(range(20))
    bench.step()
    bench.scheduler.abort(0)
    again = bench.add(range(20))
    bench.step()

    assert again.num_cached_tokens == 16


def test_a_cached_prefix_is_not_fed(make_bench: MakeBench) -> None:
    bench = make_bench()
    first = bench.add(range(10))
    bench.step()
    second = bench.add([*range(8), 50, 51])
    plan = bench.plan()

    assert plan.rows[1] == RowPlan(1, 8, 2, 0, tuple(second.block_ids), True, 0)
    assert second.block_ids[:2] == first.block_ids[:2]
    stats = bench.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (20, 8)


def test_seeds_are_the_users_or_else_steady_and_all_different(make_bench: MakeBench) -> None:
    bench = make_bench(seed=3)
    for seed in (None, None, 42):
        bench.add(2, seed=seed)
    seeds = [row.seed for row in bench.plan().new_rows]

    assert seeds[2] == 42
    assert len(set(seeds)) == 3
    twin, other = make_bench(seed=3), make_bench(seed=4)
    twin.add(2)
    other.add(2)
    assert twin.plan().new_rows[0].seed == seeds[0] != other.plan().new_rows[0].seed


def test_gauges_and_counters(make_bench: MakeBench) -> None:
    bench = make_bench(max_num_seqs=1)
    bench.add(10)
    bench.add(3)
    bench.step()
    bench.step()
    stats = bench.scheduler.stats()

    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.num_blocks, stats.num_held_blocks, stats.num_cached_blocks) == (64, 3, 0)
    assert (stats.num_steps, stats.prompt_tokens_computed, stats.generated_tokens) == (2, 10, 2)
    assert stats.iteration_tokens == {16: 1, 1: 1}
    stats.iteration_tokens[1] = 99
    assert bench.scheduler.stats().iteration_tokens[1] == 1, "a snapshot, not a window"


def test_reset_prefix_cache(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.add(range(10))
    bench.step(r0=RowResult([], error="x"))
    assert bench.scheduler.reset_prefix_cache()
    again = bench.add(range(10))
    bench.step()

    assert again.num_cached_tokens == 0


@pytest.mark.parametrize(
    ("policy", "max_num_seqs", "budget", "message"),
    [
        ("lifo", 4, 8, "scheduling policy must be one of fcfs, priority, got 'lifo'"),
        ("fcfs", 9, 8, r"max_num_seqs \(9\) must be between 1 and max_num_batched_tokens \(8\)"),
        ("fcfs", 0, 8, "max_num_seqs"),
    ],
)
def test_settings_that_cannot_hold(policy: str, max_num_seqs: int, budget: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheduler(
            CacheManager(8, 4), NoDrafts(), max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, policy=policy
        )
