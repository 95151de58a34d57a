"""What asking for drafts yields, and from that the length worth asking for.

Knows nothing about single requests. For all of them together it remembers how likely the drafts that came back were to
survive, as a histogram by position; that does not depend on the load, so a change of load needs no new experience.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.curve import forward_ms

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
        self._has_rounds = has_rounds
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

    def judge(self, promised: float, kept: float) -> None:
        """Drafts were verified: so many were expected to survive, and so many did.

        What is known of survival was known when the drafts came; verification knows better.
        """
        self._promised += promised
        self._kept += kept

    def outlook(self, num_rows: int, num_asked: int, cost: CostCurve, shape: StepShape) -> Outlook:
        """What to expect of asking num_asked of num_rows rows, when the next step is of about this shape.

        For every length the drafts it can be expected to bring are verified down to the survival that pays best; the
        length is best with which the step commits most a millisecond.
        """
        self._take_asks()
        start_ms, round_ms, row_ms, token_ms = cost.draft_figures
        each_ms = round_ms + num_asked * token_ms if self._has_rounds else 0.0  # token of a draft
        return Outlook(
            *_outlook(
                self._asks,
                self._counts,
                self._survival,
                self._kept / self._promised,
                self._prior_given,
                self._prior_chance,
                num_rows,
                num_asked,
                *cost.knots,
                shape.num_tokens,
                *cost.beside_knots(shape),
                start_ms + num_asked * row_ms - (round_ms if self._has_rounds else 0.0),
                each_ms,
            )
        )

    def _take_asks(self) -> None:
        """Age what is known by the new askings and count them."""
        num_new = sum(self._new_asks)
        if not num_new:
            return
        keep = (1.0 - 1.0 / (MEMORY_ASKS + MEMORY_TIMES * num_new)) ** num_new
        _age(self._asks, self._counts, np.array(self._new_asks, dtype=np.float64), self._new_counts, keep)
        self._promised *= keep
        self._kept *= keep
        self._new_asks = [0] * (self._max_draft + 1)


@numba.njit(cache=True, nogil=True)
def _age(asks: FloatArray, counts: FloatArray, new_asks: FloatArray, new_counts: FloatArray, keep: float) -> None:
    """Take in the new askings, [max_draft + 1] by length, and their drafts, which are counted anew from then on."""
    asks *= keep
    counts *= keep
    counts += new_counts
    new_counts[:] = 0.0
    num_asked = 0.0
    for position in range(len(asks) - 1, -1, -1):
        num_asked += new_asks[position + 1]
        asks[position] += num_asked  # for a draft at least that long


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
        for bucket in range(counts.shape[1]):  # numba takes 1.7 s to compile an assignment of a whole row
            expected[position, bucket] = counts[position, bucket] / total
        expected[position, _bucket(min(guess / given_before, 1.0))] += PRIOR_ASKS * given_before / total
        if position:  # the first one's odds are mostly whether there is a draft at all
            survival_ratio = min(mean / mean_before, 1.0)
        given_before = (np.sum(counts[position]) + PRIOR_ASKS * given_before) / total
        mean_before = mean
    return expected


@numba.njit(cache=True, nogil=True)
def _outlook(
    asks: FloatArray,
    counts: FloatArray,
    middles: FloatArray,
    kept_share: float,
    prior_given: float,
    prior_chance: float,
    num_rows: float,
    num_asked: float,
    tokens: FloatArray,
    ms: FloatArray,
    num_tokens: float,
    fixed_ms: float,
    token_ms: float,
    draft_ms: float,
    draft_each_ms: float,
):
    """(length, floor, worth) of an `Outlook`; a draft of n tokens costs draft_ms + n · draft_each_ms."""
    max_draft = len(asks)
    expected = _expected(asks, counts, middles, prior_given, prior_chance)
    survival = np.minimum(middles * kept_share, middles[0])
    given = np.zeros(NUM_BUCKETS)
    rates, added = np.zeros(max_draft), np.zeros(max_draft)  # the best rate of each length, and its drafts
    for position in range(max_draft):
        asking_ms = draft_ms + (position + 1) * draft_each_ms
        num_drafts = num_accepted = 0.0
        for bucket in range(NUM_BUCKETS):
            given[bucket] += expected[position, bucket] * num_asked
            num_drafts += given[bucket]
            num_accepted += given[bucket] * survival[bucket]
            step_ms = forward_ms(tokens, ms, num_tokens + num_drafts, fixed_ms, token_ms) + asking_ms
            rate = (num_rows + num_accepted) / step_ms
            if rate > rates[position]:
                rates[position], added[position] = rate, num_drafts
    most = rates.max()
    longest = max_draft - 1
    while rates[longest] < (1.0 - CLOSE) * most:
        longest -= 1
    plain_ms = forward_ms(tokens, ms, num_tokens, fixed_ms, token_ms)
    num_drafts = max(added[longest], 1.0)
    floor = most * (forward_ms(tokens, ms, num_tokens + num_drafts, fixed_ms, token_ms) - plain_ms) / num_drafts
    worth = 0.0
    for position in range(longest + 1):
        for bucket in range(NUM_BUCKETS):
            worth += expected[position, bucket] * max(survival[bucket] - floor, 0.0)
    pays = most > (1.0 + LEAST_GAIN) * num_rows / plain_ms
    return longest + 1 if pays else 0, floor, worth
