"""What asking for drafts yields, and from that the length worth asking for.

Knows nothing about single requests. For all of them together it remembers how likely the drafts that came back were to
survive, as a histogram by position; that does not depend on the load, so a change of load needs no new experience.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NUM_BUCKETS = 16
PRIOR_ASKS = 8.0
"""Askings that a guess is worth."""
PRIOR_SURVIVAL = 0.7
"""The guess for the first draft of a drafter nobody knows; for longer drafts, what the shorter ones lead to expect."""
MEMORY_ASKS = 250.0
"""Askings after which the histogram forgets."""
CLOSE = 0.003
"""A longer draft is preferred when it loses no more than this share: it teaches more."""


class DraftYield:
    """What asking one row for a draft brings on average.

    Args:
        max_draft: longest draft ever asked for, tokens.
        has_rounds: each further token costs a round; else what a draft costs does not depend on its length.
    """

    def __init__(self, max_draft: int, *, has_rounds: bool = True) -> None:
        self._max_draft = max_draft
        lengths = np.arange(1, max_draft + 1)
        self._rounds, self._tokens = (lengths, lengths) if has_rounds else (np.ones_like(lengths), 0 * lengths)
        self._survival = ((np.arange(NUM_BUCKETS) + 0.5) / NUM_BUCKETS)[::-1]  # [NUM_BUCKETS], most likely first
        self._asks = np.zeros(max_draft)  # [max_draft], rows asked for a draft at least that long
        self._counts = np.zeros((max_draft, NUM_BUCKETS))  # [max_draft, NUM_BUCKETS], of them, drafts by survival
        self._new_asks = [0] * (max_draft + 1)  # by length, not taken in yet

    def learn(self, lengths: Sequence[int], survival: FloatArray) -> None:
        """Rows were asked for drafts of these lengths, and these came.

        Args:
            lengths: [num_rows], what was asked for.
            survival: [num_rows, max_draft], 0 beyond the end of what came.
        """
        self.miss(lengths)
        cells = (self._bucket(survival) + np.arange(self._max_draft) * NUM_BUCKETS)[survival > 0]
        given = np.bincount(cells, minlength=self._max_draft * NUM_BUCKETS)
        self._take_asks()
        self._counts += given.reshape(self._max_draft, NUM_BUCKETS)

    def miss(self, lengths: Iterable[int]) -> None:
        """Rows were asked for drafts of these lengths, and nothing came."""
        for length in lengths:
            self._new_asks[length] += 1

    def _take_asks(self) -> None:
        """Age what is known by the new askings and count them."""
        new = np.array(self._new_asks)
        keep = (1.0 - 1.0 / MEMORY_ASKS) ** int(new.sum())
        self._asks = self._asks * keep + new[::-1].cumsum()[-2::-1]  # a draft at least that long was asked for
        self._counts *= keep
        self._new_asks = [0] * (self._max_draft + 1)

    def best_length(self, num_rows: int, cost: CostCurve, shape: StepShape) -> int:
        """Length to ask num_rows rows for so that the next step, of about this shape, commits most a millisecond.

        For every length the drafts it can be expected to bring are verified down to the survival that pays best.
        """
        self._take_asks()
        given = np.cumsum(self._expected(), axis=0) * num_rows  # [max_draft, NUM_BUCKETS]
        added = np.cumsum(given, axis=1)
        tokens = np.cumsum(given * self._survival, axis=1)
        draft_ms = cost.draft_ms(num_rows, num_rows * self._tokens, self._rounds)
        step_ms = cost.forward_ms_many(shape.num_tokens + added, shape) + draft_ms[:, None]
        rates = ((num_rows + tokens) / step_ms).max(axis=1)
        most = float(rates.max())
        if most <= num_rows / cost.forward_ms(shape):
            return 0
        return int(np.flatnonzero(rates >= (1.0 - CLOSE) * most)[-1]) + 1

    def _expected(self) -> FloatArray:
        """Drafts an asking, by position and survival: what was seen, and as much guess as is needed.

        The guess for a position: as many drafts reach it as the one before it, and they survive as well from one to the
        next as before.
        """
        seen = self._counts @ self._survival  # [max_draft], accepted drafts to be expected of those given
        given = self._counts.sum(axis=1)
        expected = self._counts.copy()
        survival_ratio = PRIOR_SURVIVAL
        mean_before = given_before = 1.0
        for position, asks in enumerate(self._asks.tolist()):
            guess = mean_before * survival_ratio
            mean = (float(seen[position]) + PRIOR_ASKS * guess) / (asks + PRIOR_ASKS)
            bucket = self._bucket(np.array(min(guess / given_before, 1.0)))
            expected[position, bucket] += PRIOR_ASKS * given_before
            if position:  # the first one's odds are mostly whether there is a draft at all
                survival_ratio = min(mean / mean_before, 1.0)
            given_before = (float(given[position]) + PRIOR_ASKS * given_before) / (asks + PRIOR_ASKS)
            mean_before = mean
        return expected / (self._asks + PRIOR_ASKS)[:, None]

    @staticmethod
    def _bucket(survival: FloatArray) -> IntArray:
        """0 for the most likely."""
        return NUM_BUCKETS - 1 - np.minimum((survival * NUM_BUCKETS).astype(np.int64), NUM_BUCKETS - 1)
