"""A scheduler small enough to reckon by hand: blocks of 4 tokens, a clock that ticks when told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy, NoDrafts
from threefold.request import Request, SamplingParams
from threefold.schedule.scheduler import Scheduler
from threefold.step import RowResult, StepPlan, StepResult, TokenDelta

BLOCK_SIZE = 4


class Bench:
    """A scheduler and the hands that feed it."""

    def __init__(
        self,
        num_blocks: int = 64,
        *,
        controller: DraftPolicy | None = None,
        max_num_seqs: int = 8,
        budget: int = 64,
        max_chunk: int = 0,
        policy: str = "fcfs",
        seed: int = 0,
        max_wanted_beside_prompts: int | None = None,
    ) -> None:
        self.now_s = 0.0
        self.cache = CacheManager(num_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(
            self.cache,
            controller or NoDrafts(),
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=max_chunk,
            policy=policy,
            seed=seed,
            max_wanted_beside_prompts=max_wanted_beside_prompts,
            clock=lambda: self.now_s,
        )
        self._ids = itertools.count()

    def add(
        self,
        prompt: int | Sequence[int],
        *,
        max_total_tokens: int = 1000,
        ends: Sequence[int] = (),
        priority: int = 0,
        salt: str = "",
        **params: int | None,
    ) -> Request:
        """A request with this prompt; a number stands for so many tokens that no other request shares."""
        request_id = next(self._ids)
        tokens = [1000 + request_id] * prompt if isinstance(prompt, int) else list(prompt)
        wish = SamplingParams(**{"max_tokens": None, **params})
        request = Request(
            request_id,
            tokens,
            wish,
            max_total_tokens=max_total_tokens,
            end_token_ids=frozenset(ends),
            arrival_s=self.now_s,
            priority=priority,
            cache_salt=salt,
        )
        self.scheduler.add(request)
        return request

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        self.scheduler.check_integrity()
        return plan

    def commit(self, plan: StepPlan, **by_id: RowResult) -> list[TokenDelta]:
        """Commit results given as r0=…, r1=…; all other rows get token 7 where they want one."""
        rows = [
            by_id.get(f"r{row.request_id}", RowResult([7] if row.wants_token else [], num_drafted=0))
            for row in plan.rows
        ]
        deltas = self.scheduler.commit(plan, StepResult(rows))
        self.scheduler.check_integrity()
        return deltas

    def step(self, **by_id: RowResult) -> list[TokenDelta]:
        return self.commit(self.plan(), **by_id)


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    return Bench


def fed(plan: StepPlan) -> dict[int, int]:
    """Request id to the number of tokens fed."""
    return {row.request_id: row.num_new for row in plan.rows}


@pytest.fixture(name="fed")
def fed_fixture() -> Callable[[StepPlan], dict[int, int]]:
    return fed
