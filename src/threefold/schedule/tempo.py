"""The target of the time between tokens, as counts: how many rows, prompt tokens and drafts a step may hold.

Knows step times only. Without a target everything fits.
"""

from __future__ import annotations

from threefold.cost import StepShape
from threefold.schedule.pace import Pace

MIN_PROMPT_TOKENS = 8
"""Prompt tokens that a step takes whatever the target says."""
AIM = 0.95
"""Of a target, what is aimed at: 19 answers in 20 are to keep the whole."""
BEST = 1.5
"""What a target that cannot be met is held at, over what the machine does with one request alone."""


class Tempo:
    """Holds steps within a target.

    Args:
        pace: what steps take.
        target_ms: of the mean time between tokens; None = none.

    Attributes:
        target_ms: the same.
        context_tokens: mean KV tokens of a row by mid-answer, as last seen.
    """

    def __init__(self, pace: Pace, target_ms: float | None) -> None:
        self.target_ms = target_ms
        self.context_tokens = 0.0
        self._pace = pace

    def best_ms(self) -> float:
        """Time between tokens of one request alone."""
        return self._pace.ms(1, 1, self.context_tokens)

    def held_ms(self) -> float:
        """What a step may take: the target less a margin, or BEST times the best where it cannot be met."""
        assert self.target_ms is not None
        best_ms = self.best_ms()
        return max(AIM * self.target_ms, best_ms) if self.target_ms >= best_ms else BEST * best_ms

    def most_rows(self, context_tokens: float, most: int) -> int:
        """The largest running set of such contexts, at least 1 and at most `most`; prompts get on beside it."""
        if self.target_ms is None:
            return most
        return max(self._pace.most_rows(self.held_ms(), context_tokens, MIN_PROMPT_TOKENS, most), 1)

    def most_prompt_tokens(self, num_decoding: int, kv_tokens: float, most: int, *, extra_ms: float = 0.0) -> int:
        """Prompt tokens beside so many rows that say tokens, at most `most`; extra_ms on top of what is held."""
        if self.target_ms is None or not num_decoding:
            return most
        found = self._pace.most_tokens(self.held_ms() + extra_ms, num_decoding, kv_tokens, most)
        return max(found, min(MIN_PROMPT_TOKENS, most))

    def most_drafts(self, shape: StepShape, most: int) -> int:
        """Draft tokens besides what a step holds, at most `most`."""
        return most if self.target_ms is None else self._pace.most_extra(self.held_ms(), shape, most)
