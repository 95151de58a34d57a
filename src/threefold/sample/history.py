"""Which tokens a request has seen and how often its output used them: what the three penalties count.

Knows nothing about logits. Sparse, because a request sees a few hundred distinct tokens of a vocabulary of 100,000.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenHistory:
    """Distinct tokens of prompt and output, with their counts in the output."""

    def __init__(self, prompt: npt.NDArray[np.int32]) -> None:
        distinct = np.unique(prompt)
        self._size = len(distinct)
        self._token_ids = np.empty(max(2 * self._size, 64), dtype=np.int64)
        self._token_ids[: self._size] = distinct
        self._counts = np.zeros_like(self._token_ids)
        self._places = {token_id: place for place, token_id in enumerate(distinct.tolist())}

    def push(self, token_id: int) -> None:
        """Count one more output token."""
        place = self._places.get(token_id)
        if place is None:
            place = self._append(token_id)
        self._counts[place] += 1

    def counted(self, drafts: Sequence[int]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """What the next position sees, and the one after each draft, every draft before it counted as output.

        Returns:
            (distinct token ids, their counts in the output) for each of the 1 + len(drafts) positions; the history
            itself is left as it was.
        """
        num_known = self._size
        views = [self._view()]
        for token_id in drafts:
            self.push(token_id)
            views.append(self._view())
        for token_id in drafts:
            self._counts[self._places[token_id]] -= 1
        for token_id in self._token_ids[num_known : self._size].tolist():
            del self._places[token_id]
        self._size = num_known
        return views

    def _append(self, token_id: int) -> int:
        if self._size == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.empty_like(self._token_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        place = self._size
        self._token_ids[place], self._counts[place] = token_id, 0
        self._places[token_id] = place
        self._size += 1
        return place

    def _view(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        # Token ids below the size never change, counts do.
        return self._token_ids[: self._size], self._counts[: self._size].copy()
