"""What asking for drafts costs, and whose cost it is.

Knows lengths only. Where steps overlap, the step that asks is not the only one that pays: the one behind it waits,
whether it has drafts or not, and where drafts are made behind a step it is the next one alone that waits for them.
"""

from __future__ import annotations

from collections.abc import Collection

from threefold.cost import CostCurve


class AskingPrice:
    """The part of the cost curve that speaks of asking, kept up with what steps took.

    Args:
        cost: learns here what asking costs.
        has_rounds: each further token costs a draft model's pass; else what is asked for is looked up at once.
        is_behind: drafts are made behind the step that asks for them, so it is the next one that waits for them.
    """

    def __init__(self, cost: CostCurve, *, has_rounds: bool, is_behind: bool) -> None:
        self._cost = cost
        self._has_rounds = has_rounds
        self._is_behind = is_behind
        self._last_lengths: Collection[int] = ()
        self._was_asking = False
        self._single: tuple[Collection[int], float] = (), 0.0  # an asking whose price is not complete

    def ms(self, lengths: Collection[int]) -> float:
        """What it costs to ask rows for drafts of these lengths."""
        return self._cost.draft_ms(*self._totals(lengths))

    def row_ms(self, length: int) -> float:
        """What one more row costs where others are asked anyway."""
        return self._cost.draft_ms(1, length if self._has_rounds else 0, 0)

    def learn(self, lengths: Collection[int], draft_ms: float) -> None:
        """A step that asks for these lengths, or for none, was held up so long by drafts."""
        if self._is_behind:
            waited_for, self._last_lengths = self._last_lengths, lengths
            if waited_for:
                self._cost.observe_draft(*self._totals(waited_for), draft_ms)
            return
        # Step after step each one's price holds what it waited for the one before; a single asking pays that later.
        last_lengths, last_ms = self._single
        self._single = (), 0.0
        if lengths and self._was_asking:
            self._cost.observe_draft(*self._totals(lengths), draft_ms)
        elif lengths:
            self._single = lengths, draft_ms
        elif last_lengths:
            self._cost.observe_draft(*self._totals(last_lengths), last_ms + draft_ms)
        self._was_asking = bool(lengths)

    def _totals(self, lengths: Collection[int]) -> tuple[int, int, int]:
        """Rows asked, tokens asked for and rounds, as far as they cost anything."""
        most = max(lengths, default=0)
        return (len(lengths), sum(lengths), most) if self._has_rounds else (len(lengths), 0, min(most, 1))
