"""What asking for drafts yields, and from that the length worth asking for.

Knows nothing about single requests. For all of them together it remembers how likely the drafts that came back were to
survive, as a histogram by position; that does not depend on the load, so a change of load needs no new experience.
"""
# numba brings no types, so its decorator hides those of the function below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape

FloatArray = npt.NDArray[np.float64]

NUM_BUCKETS = 16
PRIOR_ASKS = 16.0
"""Askings that a guess is worth."""
PRIOR_CHANCE = 0.7
"""The guess for the first draft of a drafter nobody knows; for longer drafts, what the shorter ones lead to expect."""
PRIOR_HITS = 0.5
"""The guess at how often looking up finds anything."""
PRIOR_TOKENS = 4.0
"""Tokens that drafters' word is worth at first."""
MEMORY_ASKS = 250.0
"""Askings after which the histogram forgets, and …"""
MEMORY_TIMES = 2.0
"""… in addition so many times as many as came since it was last looked at."""
CLOSE = 0.003
"""A longer draft is preferred when it loses no more than this share: it teaches more."""
LEAST_GAIN = 0.01
"""A gain of less than this share of the step is within what nobody knows of its costs: for that nobody begins."""


class Outlook(NamedTuple):
    """What asking is worth at a load."""

    length: int
    """Tokens to ask for; 0 = it does not pay."""
    floor: float
    """Survival that pays for verifying a draft, at the best length there is, be it worth while or not."""
    worth: float
    """Accepted tokens an asking brings beyond what verifying takes, in tokens that could have been had instead."""


def even_chance(num_accepted: float, max_draft: int) -> float:
    """The chance of each draft with which so many of max_draft drafts come true on average."""
    low, high = 0.0, 1.0
    for _ in range(30):
        chance = (low + high) / 2
        if sum(chance**position for position in range(1, max_draft + 1)) < num_accepted:
            low = chance
        else:
            high = chance
    return (low + high) / 2


class DraftYield:
    """What asking one row for a draft brings on average.

    Args:
        max_draft: longest draft ever asked for, tokens.
        has_rounds: each further token costs a round; else what a draft costs does not depend on its length.
        prior_chance: the guess for each draft before any is seen.
    """

    def __init__(self, max_draft: int, *, has_rounds: bool = True, prior_chance: float = PRIOR_CHANCE) -> None:
        self._max_draft = max_draft
        self._prior_chance = prior_chance
        self._prior_given = 1.0 if has_rounds else PRIOR_HITS
        lengths = np.arange(1, max_draft + 1)
        self._rounds, self._tokens = (lengths, lengths) if has_rounds else (np.ones_like(lengths), 0 * lengths)
        self._survival = 1.0 - (np.arange(NUM_BUCKETS) + 0.5) / NUM_BUCKETS  # [NUM_BUCKETS], most likely first
        self._asks = np.zeros(max_draft)  # [max_draft], rows asked for a draft at least that long
        self._counts = np.zeros((max_draft, NUM_BUCKETS))  # [max_draft, NUM_BUCKETS], of them, drafts by survival
        self._new_asks = [0] * (max_draft + 1)  # by length, not taken in yet
        self._new_counts = np.zeros((max_draft, NUM_BUCKETS))  # the same of drafts
        self._promised = self._kept = PRIOR_TOKENS

    def learn(self, lengths: Sequence[int], survival: FloatArray, floor: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Rows were asked for drafts of these lengths, and these came.

        Args:
            lengths: [num_rows], what was asked for.
            survival: [num_rows, max_draft], 0 beyond the end of what came.
            floor: survival that only pays for verifying.

        Returns:
            Tokens to be expected of each row, and what of it is beyond the floor, [num_rows].
        """
        self.miss(lengths)
        return _count(survival, floor, self._new_counts)

    def miss(self, lengths: Iterable[int]) -> None:
        """Rows were asked for drafts of these lengths, and nothing came."""
        for length in lengths:
            self._new_asks[length] += 1

    def judge(self, promised: float, kept: int) -> None:
        """A row's drafts were verified: so many were expected to survive, and so many did.

        What is known of survival was known when the drafts came; verification knows better.
        """
        self._promised += promised
        self._kept += kept

    def _take_asks(self) -> None:
        """Age what is known by the new askings and count them."""
        new = np.array(self._new_asks)
        num_new = int(new.sum())
        keep = (1.0 - 1.0 / (MEMORY_ASKS + MEMORY_TIMES * num_new)) ** num_new
        self._asks = self._asks * keep + new[::-1].cumsum()[-2::-1]  # a draft at least that long was asked for
        self._counts = self._counts * keep + self._new_counts
        self._new_counts[:] = 0.0
        self._promised *= keep
        self._kept *= keep
        self._new_asks = [0] * (self._max_draft + 1)

    def outlook(self, num_rows: int, num_asked: int, cost: CostCurve, shape: StepShape) -> Outlook:
        """What to expect of asking num_asked of num_rows rows, when the next step is of about this shape.

        For every length the drafts it can be expected to bring are verified down to the survival that pays best; the
        length is best with which the step commits most a millisecond.
        """
        self._take_asks()
        expected = _expected(self._asks, self._counts, self._survival, self._prior_given, self._prior_chance)
        survival = np.minimum(self._survival * (self._kept / self._promised), self._survival[0])
        given = np.cumsum(expected, axis=0) * num_asked  # [max_draft, NUM_BUCKETS]
        added = np.cumsum(given, axis=1)
        tokens = np.cumsum(given * survival, axis=1)
        draft_ms = cost.draft_ms(num_asked, num_asked * self._tokens, self._rounds)
        forward_ms = cost.forward_ms_many(shape.num_tokens + added, shape)
        rates = (num_rows + tokens) / (forward_ms + draft_ms[:, None])
        best_rates = rates.max(axis=1)
        most = float(best_rates.max())
        plain_ms = cost.forward_ms(shape)
        longest = int(np.flatnonzero(best_rates >= (1.0 - CLOSE) * most)[-1])
        least = int(rates[longest].argmax())
        num_drafts = max(float(added[longest, least]), 1.0)
        drafted_ms = float(cost.forward_ms_many(np.array([shape.num_tokens + num_drafts]), shape)[0])
        floor = most * (drafted_ms - plain_ms) / num_drafts
        worth = float((expected[: longest + 1] * np.maximum(survival - floor, 0.0)).sum())
        pays = most > (1.0 + LEAST_GAIN) * num_rows / plain_ms
        return Outlook(longest + 1 if pays else 0, floor, worth)


@numba.njit(cache=True, nogil=True)
def _bucket(survival: float) -> int:
    """0 for the most likely."""
    return NUM_BUCKETS - 1 - min(int(survival * NUM_BUCKETS), NUM_BUCKETS - 1)


@numba.njit(cache=True, nogil=True)
def _count(survival: FloatArray, floor: float, counts: FloatArray):
    """Add drafts to a histogram and sum them up as `DraftYield.learn` returns them."""
    totals, worths = np.zeros(len(survival)), np.zeros(len(survival))
    for row in range(len(survival)):
        for i in range(survival.shape[1]):
            chance = survival[row, i]
            if chance <= 0.0:
                break
            counts[i, _bucket(chance)] += 1.0
            totals[row] += chance
            worths[row] += max(chance - floor, 0.0)
    return totals, worths


@numba.njit(cache=True, nogil=True)
def _expected(asks: FloatArray, counts: FloatArray, middles: FloatArray, prior_given: float, prior_chance: float):
    """Drafts an asking, by position and survival: what was seen, and as much guess as is needed.

    The guess for a position: as many drafts reach it as the one before it, and they survive as well from one to the
    next as before.
    """
    expected = np.empty_like(counts)
    survival_ratio = prior_chance
    mean_before = given_before = prior_given
    for position in range(len(asks)):
        total = asks[position] + PRIOR_ASKS
        guess = mean_before * survival_ratio
        mean = (np.sum(counts[position] * middles) + PRIOR_ASKS * guess) / total
        expected[position] = counts[position] / total
        expected[position, _bucket(min(guess / given_before, 1.0))] += PRIOR_ASKS * given_before / total
        if position:  # the first one's odds are mostly whether there is a draft at all
            survival_ratio = min(mean / mean_before, 1.0)
        given_before = (np.sum(counts[position]) + PRIOR_ASKS * given_before) / total
        mean_before = mean
    return expected
