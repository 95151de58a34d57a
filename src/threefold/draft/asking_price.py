"""What asking for drafts costs, and whose cost it is.

Knows lengths only. Where steps overlap, the step that asks is not the only one that pays: the one behind it waits,
whether it has drafts or not, and where drafts are made behind a step it is the next one alone that waits for them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from threefold.cost import CostCurve


class _Asking(NamedTuple):
    """Rows asked, tokens asked for and rounds, as far as they cost anything."""

    num_rows: int
    num_tokens: int
    rounds: int


_NOBODY = _Asking(0, 0, 0)


class AskingPrice:
    """The part of the cost curve that speaks of asking, kept up with what steps took.

    Args:
        cost: learns here what asking costs.
        has_rounds: each further token costs a draft model's pass; else what is asked for is looked up at once.
        is_behind: drafts are made behind the step that asks for them, so it is the next one that waits for them.
        verify_ms: what each draft that is verified takes of the host while the device waits.
    """

    def __init__(self, cost: CostCurve, *, has_rounds: bool, is_behind: bool, verify_ms: float = 0.0) -> None:
        self._cost = cost
        self._has_rounds = has_rounds
        self._is_behind = is_behind
        self.verify_ms = verify_ms
        self._last = _NOBODY
        self._was_asking = False
        self._single = _NOBODY, 0.0  # an asking whose price is not complete

    @property
    def is_settled(self) -> bool:
        """Whether the next step, if it asks nobody, has nothing to say of the price."""
        return not (self._last.num_rows or self._was_asking or self._single[0].num_rows)

    def ms(self, lengths: Collection[int]) -> float:
        """What it costs to ask rows for drafts of these lengths."""
        return self._cost.draft_ms(*self._asking(lengths))

    def even_ms(self, num_rows: int, length: int) -> float:
        """What it costs to ask so many rows for drafts of one length."""
        num_tokens, rounds = (num_rows * length, length) if self._has_rounds else (0, 1)
        return self._cost.draft_ms(num_rows, num_tokens, rounds)

    def row_ms(self, length: int) -> float:
        """What one more row costs where others are asked anyway."""
        return self._cost.draft_ms(1, length if self._has_rounds else 0, 0)

    def learn(self, lengths: Collection[int], draft_ms: float, num_verified: int = 0) -> None:
        """A step that asks for these lengths, or for none, and verifies drafts was held up so long by drafts."""
        asking = self._asking(lengths)
        draft_ms = max(draft_ms - self.verify_ms * num_verified, 0.0)
        if self._is_behind:
            waited_for, self._last = self._last, asking
            if waited_for.num_rows:
                self._cost.observe_draft(*waited_for, draft_ms)
            return
        # Step after step each one's price holds what it waited for the one before; a single asking pays that later.
        last, last_ms = self._single
        self._single = _NOBODY, 0.0
        if asking.num_rows and self._was_asking:
            self._cost.observe_draft(*asking, draft_ms)
        elif asking.num_rows:
            self._single = asking, draft_ms
        elif last.num_rows:
            self._cost.observe_draft(*last, last_ms + draft_ms)
        self._was_asking = asking.num_rows > 0

    def _asking(self, lengths: Collection[int]) -> _Asking:
        if not lengths:
            return _NOBODY
        return _Asking(len(lengths), sum(lengths), max(lengths)) if self._has_rounds else _Asking(len(lengths), 0, 1)
