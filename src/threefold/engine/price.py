"""What drafts really cost a step: all that passes beside its forward pass, less what passes there without drafts.

Proposing is the part that can be timed by itself. Deciding, planning, verifying on the host and building longer results
cost as well, and where steps overlap a step that asks for drafts keeps the next one waiting, whether or not that one
has any. All of it lies between the end of one step and the end of the next. Knows nothing about what is done with the
price.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from threefold.step import StepPlan, StepResult

MEMORY_STEPS = 20.0
"""Steps over which what the host takes is averaged."""


class _Kind(NamedTuple):
    """What a step's time beside its forward pass may come from."""

    is_asking: bool
    has_drafts: bool
    has_new_rows: bool

    @classmethod
    def of(cls, plan: StepPlan) -> _Kind:
        is_asking = any(row.next_draft for row in plan.rows)
        has_drafts = is_asking or any(row.max_draft for row in plan.rows)
        return cls(is_asking, has_drafts, bool(plan.new_rows))


class DraftPrice:
    """Puts the price of drafts into a step's result.

    Args:
        is_overlapped: what the host does without drafts is hidden behind the device's work, as far as it fits there.
    """

    def __init__(self, is_overlapped: bool) -> None:
        self._is_overlapped = is_overlapped
        self._ended_s: float | None = None
        self._before = _Kind(False, False, False)
        self._plain_ms: dict[int, float] = {}  # a committed token's share of the host, by the size of the batch
        self._setup_ms: dict[int, float] = {}  # what rows that are set up add to it
        self._draft_ms: dict[int, float] = {}  # what drafts cost a step lately

    def rest(self) -> None:
        """Nothing runs: the time until the next step is nobody's."""
        self._ended_s = None

    def put(self, plan: StepPlan, result: StepResult, ended_s: float) -> StepResult:
        """The result with draft_ms as it should be.

        Args:
            plan: the step's.
            result: what it came to; its forward_ms is trusted.
            ended_s: the clock when it was collected.
        """
        before_s, self._ended_s = self._ended_s, ended_s
        before, self._before = self._before, _Kind.of(plan)
        has_price = self._before.has_drafts or (self._is_overlapped and before.has_drafts)
        if not has_price:
            result = replace(result, draft_ms=0.0)
        num_tokens = sum([len(row.token_ids) for row in result.rows])
        if before_s is None or not num_tokens:
            return result
        size = len(plan.rows).bit_length()
        beside_ms = max((ended_s - before_s) * 1000 - result.forward_ms, 0.0)
        is_setting_up = before.has_new_rows or self._before.has_new_rows
        if not has_price:
            self._learn_plain(size, num_tokens, beside_ms, is_setting_up=is_setting_up)
            return result
        allowed_ms = self._allowed_ms(size, num_tokens, is_setting_up=is_setting_up)
        if allowed_ms is None:
            return replace(result, draft_ms=max(result.draft_ms, self._draft_ms.get(size, 0.0)))
        draft_ms = max(beside_ms - allowed_ms, 0.0)
        _average(self._draft_ms, size, draft_ms)
        return replace(result, draft_ms=draft_ms)

    def _learn_plain(self, size: int, num_tokens: int, beside_ms: float, *, is_setting_up: bool) -> None:
        if not is_setting_up:
            _average(self._plain_ms, size, beside_ms / num_tokens)
            return
        allowed_ms = self._allowed_ms(size, num_tokens, is_setting_up=False)
        if allowed_ms is not None:
            _average(self._setup_ms, size, max(beside_ms - allowed_ms, 0.0))

    def _allowed_ms(self, size: int, num_tokens: int, *, is_setting_up: bool) -> float | None:
        """What a step of so many tokens would have cost the host without drafts; None = nobody knows."""
        setup_ms = self._setup_ms.get(size) if is_setting_up else 0.0
        share_ms = self._plain_ms.get(size, 0.0 if self._is_overlapped else None)
        return None if setup_ms is None or share_ms is None else share_ms * num_tokens + setup_ms


def _average(by_size: dict[int, float], size: int, ms: float) -> None:
    known_ms = by_size.get(size, ms)
    by_size[size] = known_ms + (ms - known_ms) / MEMORY_STEPS
