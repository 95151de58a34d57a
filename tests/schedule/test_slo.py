"""Latency targets on a scheduler: what a step may hold, who is refused, and that nothing changes without them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold.cache.manager import CacheManager
from threefold.cost import CostCurve, StepShape
from threefold.draft.policy import DraftPolicy, FixedDrafts, NoDrafts
from threefold.errors import OverloadedError
from threefold.request import Request, SamplingParams
from threefold.schedule.drafting import shape_of
from threefold.schedule.scheduler import Scheduler
from threefold.schedule.slo import Slo
from threefold.schedule.tempo import MIN_PROMPT_TOKENS
from threefold.step import RowResult, StepPlan, StepResult, TokenDelta
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor
from threefold.testing.fake_model import FakeModel

KNOTS = [(1, 10.0), (8, 11.0), (16, 14.0), (32, 20.0), (64, 32.0), (512, 200.0)]
FAR_MS = 1e8


class Engine:
    """A scheduler over the FakeExecutor whose steps take what the curve says, on a clock of their own."""

    def __init__(
        self,
        targets: Mapping[str, float] | None,
        *,
        max_num_seqs: int = 64,
        budget: int = 256,
        num_blocks: int = 4096,
        policy: DraftPolicy | None = None,
        drafts: FakeDrafts | None = None,
        priority: bool = False,
        slowness: float = 1.0,
    ) -> None:
        self.now_s = 100.0
        self.slowness = slowness
        self.truth = CostCurve(KNOTS)
        self.slo = None if targets is None else Slo(CostCurve(KNOTS), targets)
        self.cache = CacheManager(num_blocks, 16)
        self.executor = FakeExecutor(FakeModel(), drafts=drafts)
        self.scheduler = Scheduler(
            self.cache,
            policy or NoDrafts(),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            policy="priority" if priority else "fcfs",
            slo=self.slo,
            clock=lambda: self.now_s,
        )
        self.times_ms: dict[int, list[float]] = {}
        self._ids = itertools.count()

    def add(self, num_prompt: int, num_output: int, *, priority: int = 0, age_s: float = 0.0) -> int:
        request_id = next(self._ids)
        prompt = [7 + request_id % 50] * num_prompt
        params = SamplingParams(max_tokens=num_output, temperature=0.0)
        request = Request(
            request_id,
            prompt,
            params,
            max_total_tokens=num_prompt + num_output,
            end_token_ids=frozenset(),
            arrival_s=self.now_s - age_s,
            priority=priority,
        )
        self.scheduler.add(request)
        self.times_ms[request_id] = []
        return request_id

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.finish(plan)
        self.scheduler.check_integrity()
        return plan

    def finish(self, plan: StepPlan) -> list[TokenDelta]:
        result = self.executor.run(plan)
        step_ms = self.truth.forward_ms(shape_of(plan.columns)) * self.slowness
        self.now_s += step_ms / 1000
        deltas = self.scheduler.commit(plan, StepResult(result.rows, forward_ms=step_ms))
        for delta in deltas:
            self.times_ms[delta.request_id] += [self.now_s * 1000] * len(delta.token_ids)
        return deltas

    def steps(self) -> Iterator[StepPlan]:
        while (plan := self.step()) is not None:
            yield plan


def num_fed(plan: StepPlan) -> int:
    """Prompt tokens of a step, but for the last of each prompt's."""
    return sum(row.num_new for row in plan.rows if row.num_new > 1 or not row.wants_token)


def test_a_long_prompt_is_fed_as_the_running_ones_allow() -> None:
    engine = Engine({"tpot": 25.0})
    for _ in range(8):
        engine.add(4, 200)
    engine.step()
    engine.add(1000, 4)
    plans = [engine.step() for _ in range(20)]
    fed = [num_fed(plan) for plan in plans if plan is not None]
    assert all(MIN_PROMPT_TOKENS <= tokens < 256 for tokens in fed)
    for plan in plans:
        assert plan is not None
        assert engine.truth.forward_ms(shape_of(plan.columns)) <= 25.0


def test_without_anybody_to_hurt_a_prompt_gets_all() -> None:
    engine = Engine({"tpot": 25.0})
    engine.add(1000, 4)
    plan = engine.step()
    assert plan is not None
    assert plan.num_tokens == 256


def test_a_prompt_gets_on_even_where_the_target_leaves_nothing() -> None:
    engine = Engine({"tpot": 10.5})
    for _ in range(2):
        engine.add(4, 500)
    engine.step()
    engine.add(200, 4)
    for _ in range(200 // MIN_PROMPT_TOKENS + 4):
        engine.step()
        if engine.times_ms[2]:
            break
    else:
        pytest.fail("the prompt starved")


def test_the_running_set_is_the_largest_that_keeps_the_pace() -> None:
    engine = Engine({"tpot": 20.0})
    for _ in range(64):
        engine.add(4, 60)
    most = max(len(plan.rows) for plan in engine.steps())
    assert 20 <= most <= 32
    for times in engine.times_ms.values():
        assert len(times) == 60
        assert (times[-1] - times[0]) / 59 <= 20.0


def test_the_running_set_shrinks_on_a_slower_machine() -> None:
    quick, slow = Engine({"tpot": 30.0}), Engine({"tpot": 30.0}, slowness=1.5)
    sizes = []
    for engine in (quick, slow):
        for _ in range(200):
            engine.add(4, 30)
        sizes.append([len(plan.rows) for plan in engine.steps()][60])
    assert sizes[1] < 0.8 * sizes[0]


def test_a_late_prompt_is_paid_from_what_the_running_ones_saved() -> None:
    """They ran for 60 steps of 11 ms with a target of 25; then the prompt may cost more than one step's share."""
    longest = []
    for targets in ({"tpot": 25.0}, {"tpot": 25.0, "ttft": 300.0}):
        engine = Engine(targets)
        for _ in range(4):
            engine.add(4, 100)
        for _ in range(60):
            engine.step()
        engine.add(1000, 4, age_s=0.1)
        fed = []
        while not engine.times_ms[4]:
            plan = engine.step()
            assert plan is not None
            fed.append(num_fed(plan))
        longest.append(max(fed))
        for _ in engine.steps():
            pass
        for times in list(engine.times_ms.values())[:4]:
            assert (times[-1] - times[0]) / 99 <= 25.0
    assert longest[1] > 2 * longest[0]


def test_drafts_take_what_the_target_leaves() -> None:
    def widest(targets: Mapping[str, float] | None) -> int:
        engine = Engine(targets, policy=FixedDrafts(8), drafts=FakeDrafts(0.9))
        for _ in range(8):
            engine.add(4, 60)
        return max(plan.num_tokens for plan in engine.steps())

    assert widest(None) > 60
    assert widest({"tpot": 20.0}) <= 32
    assert widest({"ttft": 5000.0}) == widest(None)


def test_who_would_wait_too_long_is_refused_and_nothing_else_happens() -> None:
    engine = Engine({"ttft": 300.0}, max_num_seqs=4)
    engine.add(100, 50)
    engine.step()
    num_taken = 1
    with pytest.raises(OverloadedError, match=r"would come after about .* s, \d+ requests are before it") as caught:
        for _ in range(50):
            engine.add(100, 50)
            num_taken += 1
    assert caught.value.reason == "slo"
    assert caught.value.retry_after_s >= 1.0
    assert num_taken >= 4
    for _ in engine.steps():
        pass
    assert [len(times) for times in engine.times_ms.values()] == [50] * num_taken
    assert engine.cache.num_held_blocks == 0
    stats = engine.scheduler.stats().slo
    assert stats is not None
    assert stats.num_shed == 1
    assert engine.add(100, 5) >= 0, "the engine goes on"


def test_the_longer_the_wait_the_later_to_come_back() -> None:
    engine = Engine({"ttft": 100.0}, max_num_seqs=2)
    engine.add(10, 4000)
    engine.add(10, 4000)
    engine.step()
    with pytest.raises(OverloadedError) as caught:
        engine.add(10, 10)
    # a hundred tokens and more of ten milliseconds each until one of the two ends
    assert 1.0 < caught.value.retry_after_s < 4000 * 0.011 * 1.5


def test_nobody_is_refused_while_nothing_runs() -> None:
    engine = Engine({"ttft": 1.0, "tpot": 1.0})
    for _ in range(5):
        engine.add(500, 5)
        for _ in engine.steps():
            pass
    assert all(len(times) == 5 for times in engine.times_ms.values())


def test_a_target_that_cannot_be_met_alone_refuses_only_a_crowd() -> None:
    engine = Engine({"ttft": 1.0})
    engine.add(30, 400)
    engine.step()
    engine.add(30, 400)  # a little later than alone
    with pytest.raises(OverloadedError):
        for _ in range(60):
            engine.add(200, 5)


def test_with_priorities_only_those_before_it_count() -> None:
    engine = Engine({"ttft": 400.0}, max_num_seqs=64, budget=64, priority=True)
    engine.add(4, 50)
    engine.step()
    with pytest.raises(OverloadedError):
        for _ in range(50):
            engine.add(120, 5, priority=5)
    engine.add(20, 5, priority=1)


def test_those_who_leave_are_forgotten() -> None:
    engine = Engine({"ttft": 500.0, "tpot": 50.0})
    for _ in range(3):
        engine.add(10, 50)
    engine.step()
    for request_id in range(3):
        assert engine.scheduler.abort(request_id)
    assert engine.step() is None
    assert engine.slo is not None
    stats = engine.slo.stats()
    assert (stats.ttft_attained, stats.tpot_attained) == (1.0, 1.0)


def test_what_was_attained_is_counted() -> None:
    engine = Engine({"ttft": 15.0, "tpot": 15.0})
    engine.add(4, 20)
    for _ in engine.steps():
        pass
    engine.slowness = 10.0
    engine.add(4, 20)
    for _ in engine.steps():
        pass
    stats = engine.scheduler.stats().slo
    assert stats is not None
    assert (stats.ttft_attained, stats.tpot_attained) == (0.5, 0.5)
    assert stats.predicted_ttft_ms > 0
    assert (stats.ttft_target_ms, stats.tpot_target_ms) == (15.0, 15.0)


def test_a_row_that_failed_is_no_answer() -> None:
    engine = Engine({"ttft": 500.0, "tpot": 50.0})
    engine.executor.row_faults[0] = "broken"
    engine.add(4, 20)
    engine.step()
    assert engine.slo is not None
    assert engine.slo.stats().ttft_attained == 1.0
    assert not engine.scheduler.has_work


def test_idle_time_is_nobodys() -> None:
    engine = Engine({"tpot": 50.0})
    for _ in range(10):
        engine.add(4, 3)
        for _ in engine.steps():
            pass
        engine.now_s += 1000.0
    assert engine.slo is not None
    assert engine.slo.stats().step_error < 1.2


def test_best_and_most_are_told_before_anything_runs() -> None:
    slo = Slo(CostCurve(KNOTS), {"ttft": 100.0, "tpot": 40.0})
    assert slo.best_tpot_ms() == pytest.approx(11.0)
    assert 30 < slo.most_rows(100, 64) <= 64
    assert 100 < slo.longest_prompt(256) < 256
    assert Slo(CostCurve(KNOTS), {"ttft": 1.0}).longest_prompt(256) == 0
    assert Slo(CostCurve(KNOTS), {"ttft": 1000.0}).longest_prompt(256) > 1000
    assert Slo(CostCurve(KNOTS), {"tpot": 1.0}).most_rows(100, 64) >= 1
    assert Slo(CostCurve(KNOTS), {"ttft": 1.0}).most_rows(100, 64) == 64


def run_trace(engine: Engine, seed: int, *, is_overlapped: bool) -> list[StepPlan]:
    """Requests come and go by dice; every plan that was made."""
    dice = random.Random(seed)
    plans = []
    alive: list[int] = []
    in_flight: StepPlan | None = None
    for _ in range(120):
        if dice.random() < 0.4:
            alive.append(engine.add(dice.randint(1, 300), dice.randint(1, 30), priority=dice.randint(0, 3)))
        if alive and dice.random() < 0.05:
            engine.scheduler.abort(alive.pop(dice.randrange(len(alive))))
        plan = in_flight or engine.scheduler.plan()
        in_flight = None
        if plan is None:
            continue
        plans.append(plan)
        if is_overlapped:
            in_flight = engine.scheduler.plan_ahead(plan)
        engine.finish(plan)
    return plans


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_targets_that_do_not_bind_change_no_plan(seed: int, has_drafts: bool, is_overlapped: bool) -> None:
    def plans(targets: Mapping[str, float] | None) -> list[StepPlan]:
        engine = Engine(
            targets,
            max_num_seqs=16,
            budget=64,
            num_blocks=120,
            policy=FixedDrafts(4) if has_drafts else NoDrafts(),
            drafts=FakeDrafts(0.7) if has_drafts else None,
        )
        return run_trace(engine, seed, is_overlapped=is_overlapped and not has_drafts)

    plain = plans(None)
    assert len(plain) > 20
    assert plain == plans({"ttft": FAR_MS, "tpot": FAR_MS})


def test_without_targets_there_are_no_figures() -> None:
    engine = Engine(None)
    engine.add(4, 2)
    engine.step()
    assert engine.scheduler.stats().slo is None


def test_an_overlapped_step_holds_the_target_too() -> None:
    engine = Engine({"tpot": 25.0})
    for _ in range(8):
        engine.add(4, 200)
    engine.step()
    engine.add(1000, 4)
    plan = engine.scheduler.plan()
    for _ in range(15):
        assert plan is not None
        ahead = engine.scheduler.plan_ahead(plan)
        engine.finish(plan)
        assert engine.truth.forward_ms(shape_of(plan.columns)) <= 25.0
        plan = ahead
    assert plan is not None
    engine.finish(plan)


def test_a_result_without_a_time_is_no_reading() -> None:
    engine = Engine({"tpot": 25.0})
    engine.add(4, 3)
    plan = engine.scheduler.plan()
    assert plan is not None
    engine.scheduler.commit(plan, StepResult([RowResult([7])]))
    assert engine.slo is not None
    assert engine.slo.best_tpot_ms() == pytest.approx(11.0)
    assert shape_of(plan.columns) == StepShape(4, 1, 4)
