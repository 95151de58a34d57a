"""A draft model with many users on a card, on a virtual clock: a gain of a few per cent is found and kept.

The first two drafts always pass and the others never. Costs are those of an 8B model and a 0.6B one on an H200, drafts
made behind the step that asks for them.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import pytest

from threefold.cache.manager import CacheManager
from threefold.cost import CostCurve
from threefold.draft.controller import Controller, DraftPolicy, FixedDrafts, NoDrafts
from threefold.draft.yields import even_chance
from threefold.engine.core import EngineCore
from threefold.request import Request, SamplingParams
from threefold.schedule.drafting import shape_of
from threefold.schedule.scheduler import Scheduler
from threefold.step import RowPlan, RowResult, StepPlan, StepResult

KNOTS = [
    (1, 4.3), (32, 4.6), (64, 4.9), (128, 5.5), (256, 7.8), (512, 13.0), (768, 18.6), (1024, 25.0), (1280, 31.0),
    (2048, 46.0), (4096, 88.0), (8192, 172.0),
]  # fmt: skip
KV_TOKEN_MS = 3.3e-5
NUM_ROWS, ANSWER_TOKENS, MAX_DRAFT, NUM_PASSING = 256, 192, 4, 2
SURVIVAL = (0.9, 0.8, 0.5, 0.4)
"""The draft model's own word."""


class Flight(NamedTuple):
    plan: StepPlan
    due_ms: float
    forward_ms: float


def curve() -> CostCurve:
    return CostCurve(KNOTS, kv_token_ms=KV_TOKEN_MS)


class Pair:
    """An executor without tokens; a pass of the draft model takes slowness times what it should."""

    def __init__(self, slowness: float) -> None:
        self.now_ms = self._free_ms = 0.0
        self._slowness = slowness
        self._curve = curve()
        self._flights: deque[Flight] = deque()

    def launch(self, plan: StepPlan) -> None:
        has_long_prompts = plan.num_tokens > 3 * len(plan.rows)  # no graph: kernel by kernel
        self.now_ms += (11.0 if has_long_prompts else 0.15) + 0.0012 * len(plan.rows)
        forward_ms = self._curve.forward_ms(shape_of(plan.columns))
        due_ms = max(self._free_ms, self.now_ms) + forward_ms
        self._free_ms = due_ms + self._draft_ms([row.next_draft for row in plan.rows if row.next_draft])
        self._flights.append(Flight(plan, due_ms, forward_ms))

    def collect(self) -> StepResult:
        plan, due_ms, forward_ms = self._flights.popleft()
        self.now_ms = max(self.now_ms, due_ms) + 0.35 + 0.004 * len(plan.rows)
        return StepResult([self._result(row) for row in plan.rows], forward_ms)

    def _draft_ms(self, lengths: list[int]) -> float:
        if not lengths:
            return 0.0
        num_asked, further = len(lengths), max(lengths) - 1
        return self._slowness * (2.5 + 0.004 * num_asked + further * (1.0 + 0.003 * num_asked))

    def _result(self, row: RowPlan) -> RowResult:
        if not row.wants_token:
            return RowResult([])
        survival = SURVIVAL[: row.next_draft]
        passed = min(row.max_draft, NUM_PASSING)
        return RowResult([7] * (passed + 1), row.max_draft, survival, "draft_model" if survival else "")

    def close(self) -> None:
        pass


def tokens_per_ms(policy: DraftPolicy, slowness: float) -> float:
    pair = Pair(slowness)

    def clock() -> float:
        return pair.now_ms / 1000

    cache = CacheManager(10_000, 16)
    scheduler = Scheduler(cache, policy, max_num_seqs=NUM_ROWS, max_num_batched_tokens=8192, clock=clock)
    core = EngineCore(scheduler, pair, vocab_size=100, is_overlapped=True, clock=clock)
    params = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
    for index in range(NUM_ROWS):
        prompt = [1] * (60 + (index * 37) % 120)
        total = len(prompt) + ANSWER_TOKENS
        core.add_request(Request(index, prompt, params, max_total_tokens=total, end_token_ids=frozenset()))
    while core.has_work:
        core.step()
    return NUM_ROWS * ANSWER_TOKENS / pair.now_ms


@pytest.mark.parametrize("slowness", [1.0, 1.5])
def test_a_small_gain_among_many_rows_is_found_and_kept(slowness: float) -> None:
    off = tokens_per_ms(NoDrafts(), slowness)
    best = tokens_per_ms(FixedDrafts(NUM_PASSING), slowness)
    assert best > 1.03 * off
    cost = curve()
    cost.observe_draft(1, MAX_DRAFT, MAX_DRAFT, slowness * 5.6)
    controller = Controller(cost, MAX_DRAFT, is_behind=True, prior_chance=even_chance(NUM_PASSING, MAX_DRAFT))
    rates = [tokens_per_ms(controller, slowness) for _ in range(4)]
    assert min(rates) >= 0.98 * off
    assert max(rates[2:]) >= 0.98 * best, [rate / best for rate in rates]
