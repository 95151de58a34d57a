"""The two guards, and who waits behind whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from threefold.step import StepPlan

MakeBench = Callable[..., Any]
Fed = Callable[[StepPlan], dict[int, int]]


def test_a_block_stays_spare_for_each_running_row(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(num_blocks=8)
    bench.add(8)
    bench.add(8)
    bench.add(8)  # needs 2 of the 4 blocks left, and 2 must stay spare
    bench.add(1)

    assert fed(bench.plan()) == {0: 8, 1: 8, 2: 8}, "the fourth would leave 1 spare for 3 rows"


def test_nobody_overtakes_one_that_waits_for_blocks(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(num_blocks=8)
    bench.add(8)
    bench.add(28)
    bench.add(1)

    assert fed(bench.plan()) == {0: 8}


def test_one_that_waits_holds_nothing(make_bench: MakeBench) -> None:
    """Its cached prefix was looked up and let go again."""
    bench = make_bench(num_blocks=8)
    bench.add(range(9))
    bench.step()
    large = bench.add(range(28))
    plan = bench.plan()

    assert len(plan.rows) == 1
    assert (large.block_ids, large.num_computed) == ([], 0)
    assert bench.cache.num_held_blocks == 3
    bench.commit(plan)
    bench.scheduler.abort(0)
    assert bench.plan().rows[0].num_computed == 8
    assert large.num_cached_tokens == 8


def test_a_cached_prefix_lets_in_what_would_not_fit(make_bench: MakeBench, fed: Fed) -> None:
    bench = make_bench(num_blocks=8)
    bench.add(range(20))
    bench.step()
    bench.add(range(20))

    assert fed(bench.plan()) == {0: 1, 1: 4}


def test_the_wait_ends_at_the_first_admission(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5)
    bench.add(8)
    request = bench.add(4)
    bench.now_s = 3.0
    bench.step()
    bench.now_s = 9.0
    for _ in range(5):
        bench.step()
    assert request.num_preemptions == 1
    bench.scheduler.abort(0)
    bench.step()

    assert request.first_scheduled_s == 3.0


def test_a_preempted_request_that_is_aborted_is_not_counted_as_recomputed(make_bench: MakeBench) -> None:
    bench = make_bench(num_blocks=5)
    bench.add(8)
    bench.add(4)
    for _ in range(6):
        bench.step()
    assert bench.scheduler.abort(1)

    stats = bench.scheduler.stats()
    assert (stats.num_preemptions, stats.recomputed_tokens) == (1, 0)
    assert bench.scheduler._admission._lost_tokens == {}
