"""Drafts where steps overlap, on a virtual clock: a small model on a card, whose step is as short as the host's work.

Asking breaks the overlap, so it must pay by itself. Texts quote in stretches: in a stretch drafts are mostly right, and
outside there are none. Costs are those of a model of 135M measured on one H200.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from threefold.cache.manager import CacheManager
from threefold.cost import CostCurve
from threefold.draft.controller import Controller, DraftPolicy, FixedDrafts, NoDrafts
from threefold.engine.core import EngineCore
from threefold.request import Request, SamplingParams
from threefold.schedule.drafting import shape_of
from threefold.schedule.scheduler import Scheduler
from threefold.step import StepPlan, StepResult
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor
from threefold.testing.fake_model import FakeModel

KNOTS = [(1, 0.84), (16, 0.94), (64, 1.1), (128, 1.35), (256, 1.85), (512, 2.6), (1024, 4.7), (4096, 19.0)]
ACCURACY = 0.8
STRETCH_TOKENS = 30
NUM_TOKENS = 700


class StretchDrafts(FakeDrafts):
    """Right with ACCURACY in some stretches of the texts, silent in the others."""

    def __init__(self, share: float) -> None:
        super().__init__(ACCURACY)
        dice = random.Random(4)
        self._is_quote = [dice.random() < share for _ in range(1 + NUM_TOKENS // STRETCH_TOKENS)]
        self.num_said = 0

    @property
    def is_quoting(self) -> bool:
        return self._is_quote[min(self.num_said // STRETCH_TOKENS, len(self._is_quote) - 1)]

    def propose(self, model: FakeModel, state: int, max_tokens: int) -> list[int]:
        return super().propose(model, state, max_tokens) if self.is_quoting else []


class Card(FakeExecutor):
    """Steps take the curve's time one behind another; what the host does takes time of its own."""

    def __init__(self, drafts: StretchDrafts, *, can_glimpse: bool, drafted_factor: float, held_up_ms: float) -> None:
        super().__init__(FakeModel(), drafts=drafts)
        self._drafted_factor = drafted_factor
        self._held_up_ms = held_up_ms
        self.now_ms = 0.0
        self._stretches = drafts
        self._can_glimpse = can_glimpse
        self._curve = CostCurve(KNOTS)
        self._free_ms = 0.0
        self._launched: deque[tuple[StepPlan, float]] = deque()

    def launch(self, plan: StepPlan) -> None:
        self.now_ms += 0.1 + 0.001 * len(plan.rows)
        self._free_ms = max(self._free_ms, self.now_ms) + self._forward_ms(plan)
        super().launch(plan)
        self._launched.append((plan, self._free_ms))

    def collect(self) -> StepResult:
        plan, due_ms = self._launched.popleft()
        self.now_ms = max(self.now_ms, due_ms) + 0.05 + 0.002 * len(plan.rows)
        result = super().collect()
        self._stretches.num_said += sum(len(row.token_ids) for row in result.rows) // len(plan.rows)
        num_asked = sum(row.next_draft > 0 for row in plan.rows)
        draft_ms = 0.1 + 0.006 * num_asked if num_asked else 0.0
        self.now_ms += draft_ms + (self._held_up_ms if any(row.max_draft for row in plan.rows) else 0.0)
        glimpses = {} if num_asked or not self._can_glimpse else self._glimpse(plan)
        return replace(result, forward_ms=self._forward_ms(plan), draft_ms=draft_ms, glimpses=glimpses)

    def _forward_ms(self, plan: StepPlan) -> float:
        factor = self._drafted_factor if any(row.max_draft for row in plan.rows) else 1.0
        return factor * self._curve.forward_ms(shape_of(plan.columns)._replace(kv_tokens=0))

    def _glimpse(self, plan: StepPlan) -> dict[int, float]:
        tokens = sum(ACCURACY**ahead for ahead in range(3, 9)) if self._stretches.is_quoting else 0.0
        return {row.request_id: tokens for row in plan.rows if row.wants_token}


def tokens_per_ms(
    policy: DraftPolicy,
    num_rows: int,
    share: float,
    *,
    can_glimpse: bool = False,
    drafted_factor: float = 1.0,
    held_up_ms: float = 0.0,
    num_tokens: int = NUM_TOKENS,
    times: int = 1,
) -> float:
    """So many times NUM_TOKENS a row, in answers of num_tokens, one behind another."""
    card = Card(StretchDrafts(share), can_glimpse=can_glimpse, drafted_factor=drafted_factor, held_up_ms=held_up_ms)
    scheduler = Scheduler(
        CacheManager(2048, 16),
        policy,
        max_num_seqs=num_rows,
        max_num_batched_tokens=4096,
        clock=lambda: card.now_ms / 1000,
    )
    core = EngineCore(scheduler, card, vocab_size=10**6, is_overlapped=True, clock=lambda: card.now_ms / 1000)
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    num_requests = times * num_rows * NUM_TOKENS // num_tokens
    for i in range(num_requests):
        prompt = [(7 * i + j) % 50 + 1 for j in range(16 + i % num_rows)]  # they do not end together
        total = len(prompt) + num_tokens
        core.add_request(Request(i, prompt, params, max_total_tokens=total, end_token_ids=frozenset(), arrival_s=0.0))
    while core.has_work:
        core.step()
    return num_requests * num_tokens / card.now_ms


def adaptive(sight_rows: int = 0) -> Controller:
    return Controller(CostCurve(KNOTS), 8, has_rounds=False, sight_rows=sight_rows)


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("num_rows", [1, 8, 64])
def test_what_cannot_be_seen_costs_next_to_nothing(num_rows: int, share: float) -> None:
    off = tokens_per_ms(NoDrafts(), num_rows, share)
    assert tokens_per_ms(adaptive(), num_rows, share) >= 0.98 * off


@pytest.mark.parametrize("share", [0.1, 0.3, 0.8])
@pytest.mark.parametrize("num_rows", [1, 8])
def test_with_sight_it_beats_both_never_and_always_drafting(num_rows: int, share: float) -> None:
    others = [tokens_per_ms(policy, num_rows, share) for policy in (NoDrafts(), FixedDrafts(4), FixedDrafts(8))]
    assert tokens_per_ms(adaptive(sight_rows=16), num_rows, share, can_glimpse=True) >= 0.98 * max(others)
    if share < 0.5:
        assert tokens_per_ms(adaptive(sight_rows=16), num_rows, share, can_glimpse=True) > 1.01 * max(others)


def test_many_rows_that_all_quote_are_found_out_at_once() -> None:
    others = [tokens_per_ms(policy, 64, 1.0) for policy in (NoDrafts(), FixedDrafts(4), FixedDrafts(8))]
    assert tokens_per_ms(adaptive(), 64, 1.0) >= 0.98 * max(others)


@pytest.mark.parametrize("share", [0.3, 0.8, 1.0])
def test_steps_with_drafts_that_take_longer_than_the_curve_can_say_are_no_yardstick_for_others(share: float) -> None:
    """A curve that learns from them takes steps without drafts for longer as well, and drafts seem to earn."""
    off = tokens_per_ms(NoDrafts(), 64, share)
    assert tokens_per_ms(adaptive(), 64, share, drafted_factor=2.5) >= 0.97 * off


def test_drafts_that_hold_up_steps_in_which_others_begin_are_found_out() -> None:
    """Where answers are short, nearly every step sets a row up; what drafts cost there must be booked all the same."""
    off = tokens_per_ms(NoDrafts(), 64, 1.0, num_tokens=20, times=3)
    for held_up_ms in (1.0, 6.0):
        on = tokens_per_ms(adaptive(), 64, 1.0, num_tokens=20, times=3, held_up_ms=held_up_ms)
        assert on >= 0.94 * off, held_up_ms
