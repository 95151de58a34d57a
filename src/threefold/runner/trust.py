"""How far a drafter's own estimates come true, so that drafts of different drafters can be compared.

Every proposal is judged by what was committed afterwards, also those that were never verified: to know what the text
went on with costs nothing. Knows nothing about how drafts are made.
"""

from __future__ import annotations

from collections.abc import Sequence

from threefold.draft.drafter import Draft
from threefold.sample.verify import num_common

__all__ = ["Trust", "num_common"]

MEMORY_PROPOSALS = 200.0
"""Proposals after which the past is forgotten."""
PRIOR_TOKENS = 4.0
"""Tokens that a drafter's own word is worth at first."""


class Trust:
    """One drafter's record."""

    def __init__(self) -> None:
        self._expected = PRIOR_TOKENS
        self._came_true = PRIOR_TOKENS
        self._num_judged = 0.0
        self._total = 0.0

    def worth(self, draft: Draft) -> float:
        """Tokens of the draft that can be expected to come true."""
        return sum(draft.survival) * self._came_true / self._expected

    @property
    def typical_worth(self) -> float | None:
        """Tokens that came true of a draft, on average; None = nobody knows."""
        return self._total / self._num_judged if self._num_judged else None

    def judge(self, draft: Draft, token_ids: Sequence[int]) -> None:
        """The request went on with token_ids; what a draft said beyond them is not judged."""
        keep = 1.0 - 1.0 / MEMORY_PROPOSALS
        num_true = num_common(draft.token_ids, token_ids)
        self._expected = self._expected * keep + sum(draft.survival[: len(token_ids)])
        self._came_true = self._came_true * keep + num_true
        self._num_judged = self._num_judged * keep + 1.0
        self._total = self._total * keep + num_true
