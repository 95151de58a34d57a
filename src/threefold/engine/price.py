"""What drafts really cost a step: all that passes beside its forward pass, less what passes there without drafts.

Proposing is the part that can be timed by itself. Deciding, planning, verifying on the host and building longer results
cost as well, and where steps overlap a step that asks for drafts keeps the next one waiting, whether or not that one
has any. All of it lies between the end of one step and the end of the next. Knows nothing about what is done with the
price.
"""

from __future__ import annotations

from dataclasses import replace

from threefold.step import StepPlan, StepResult

MEMORY_STEPS = 20.0
"""Steps without drafts over which the host's share is averaged."""


class DraftPrice:
    """Puts the price of drafts into a step's result.

    Args:
        is_overlapped: what the host does without drafts is hidden behind the device's work.
    """

    def __init__(self, is_overlapped: bool) -> None:
        self._is_overlapped = is_overlapped
        self._ended_s: float | None = None
        self._was_asking = False
        self._plain_ms: dict[int, float] = {}  # a committed token's share of the host, by the size of the batch

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
        is_asking = any(row.next_draft for row in plan.rows)
        was_asking, self._was_asking = self._was_asking, is_asking
        has_drafts = is_asking or any(row.max_draft for row in plan.rows)
        if self._is_overlapped:
            has_drafts = has_drafts or was_asking
            if not has_drafts:
                return result
        if before_s is None:
            return result
        num_tokens = sum([len(row.token_ids) for row in result.rows])
        if not num_tokens:
            return result
        beside_ms = max((ended_s - before_s) * 1000 - result.forward_ms, 0.0)
        size = len(plan.rows).bit_length()
        if has_drafts:
            allowed_ms = self._allowed_ms(size, num_tokens)
            return result if allowed_ms is None else replace(result, draft_ms=max(beside_ms - allowed_ms, 0.0))
        share_ms = beside_ms / num_tokens
        known_ms = self._plain_ms.get(size, share_ms)
        self._plain_ms[size] = known_ms + (share_ms - known_ms) / MEMORY_STEPS
        return result

    def _allowed_ms(self, size: int, num_tokens: int) -> float | None:
        """What so many tokens would have cost the host without drafts; None = nobody knows."""
        if self._is_overlapped:
            return 0.0
        share_ms = self._plain_ms.get(size)
        return None if share_ms is None else share_ms * num_tokens
