"""What can be expected of asking, reckoned for every length: compiled, as acceptance.py is and for the same reason.

Knows nothing about requests or about where the figures come from.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from threefold.draft.curve import forward_ms

FloatArray = npt.NDArray[np.float64]

NUM_BUCKETS = 16
"""Stretches of survival that are kept apart."""
PRIOR_ASKS = 16.0
"""Askings that a guess is worth."""
CLOSE = 0.003
"""A longer draft is preferred when it loses no more than this share: it teaches more."""
LEAST_GAIN = 0.01
"""A gain of less than this share of the step is within what nobody knows of its costs: for that nobody begins."""


class Outlook(NamedTuple):
    """What asking is worth at a load."""

    best: int
    """The length that is worth most, tokens, be it worth while or not."""
    ratios: FloatArray
    """[max_draft], what the next step commits a millisecond with each length, over a step without drafts."""
    floor: float
    """Survival that pays for verifying a draft at that length."""
    accepted: float
    """Drafts that come true at that length, of each row."""
    worth: float
    """Accepted tokens an asking brings beyond what verifying takes, in tokens that could have been had instead."""

    @property
    def length(self) -> int:
        """Tokens to ask for; 0 = it does not pay."""
        return self.best if self.ratios[self.best - 1] > 1.0 + LEAST_GAIN else 0

    def shared(self, evenness: float) -> Outlook:
        """The same by the geometric mean of what becomes of each row's speed, given how even drafts are."""
        return self._replace(ratios=self.ratios * (1.0 + self.accepted) ** (evenness - 1.0))


@numba.njit(cache=True, nogil=True)
def bucket_of(survival: float) -> int:
    """0 for the most likely."""
    return NUM_BUCKETS - 1 - min(int(survival * NUM_BUCKETS), NUM_BUCKETS - 1)


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
        expected[position, bucket_of(min(guess / given_before, 1.0))] += PRIOR_ASKS * given_before / total
        if position:  # the first one's odds are mostly whether there is a draft at all
            survival_ratio = min(mean / mean_before, 1.0)
        given_before = (np.sum(counts[position]) + PRIOR_ASKS * given_before) / total
        mean_before = mean
    return expected


@numba.njit(cache=True, nogil=True)
def _judged(expected: FloatArray, middles: FloatArray, kept_shares: FloatArray):
    """The same drafts with the survival that verification found: a share of what was expected, by position."""
    judged = np.zeros_like(expected)
    for position in range(len(expected)):
        for bucket in range(NUM_BUCKETS):
            survival = min(max(middles[bucket] * kept_shares[position], middles[-1]), middles[0])
            place = (middles[0] - survival) * NUM_BUCKETS
            low = min(int(place), NUM_BUCKETS - 2)
            judged[position, low] += (low + 1 - place) * expected[position, bucket]
            judged[position, low + 1] += (place - low) * expected[position, bucket]
    return judged


@numba.njit(cache=True, nogil=True)
def reckon(
    asks: FloatArray,
    counts: FloatArray,
    middles: FloatArray,
    kept_shares: FloatArray,
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
    verify_ms: float,
):
    """The fields of an `Outlook`.

    A draft of n tokens costs draft_ms + n · draft_each_ms, and each that is verified takes verify_ms of the host.
    """
    max_draft = len(asks)
    expected = _judged(_expected(asks, counts, middles, prior_given, prior_chance), middles, kept_shares)
    given = np.zeros(NUM_BUCKETS)
    # The best rate of each length, its drafts, and those of them that come true.
    rates, added, accepted = np.zeros(max_draft), np.zeros(max_draft), np.zeros(max_draft)
    for position in range(max_draft):
        asking_ms = draft_ms + (position + 1) * draft_each_ms
        num_drafts = num_accepted = 0.0
        for bucket in range(NUM_BUCKETS):
            given[bucket] += expected[position, bucket] * num_asked
            num_drafts += given[bucket]
            num_accepted += given[bucket] * middles[bucket]
            step_ms = forward_ms(tokens, ms, num_tokens + num_drafts, fixed_ms, token_ms)
            rate = (num_rows + num_accepted) / (step_ms + asking_ms + verify_ms * num_drafts)
            if rate > rates[position]:
                rates[position], added[position], accepted[position] = rate, num_drafts, num_accepted
    most = rates.max()
    longest = max_draft - 1
    while rates[longest] < (1.0 - CLOSE) * most:
        longest -= 1
    plain_ms = forward_ms(tokens, ms, num_tokens, fixed_ms, token_ms)
    num_drafts = max(added[longest], 1.0)
    longer_ms = forward_ms(tokens, ms, num_tokens + num_drafts, fixed_ms, token_ms) - plain_ms
    floor = most * (longer_ms / num_drafts + verify_ms)
    worth = 0.0
    for position in range(longest + 1):
        for bucket in range(NUM_BUCKETS):
            worth += expected[position, bucket] * max(middles[bucket] - floor, 0.0)
    return longest + 1, rates * (plain_ms / num_rows), floor, accepted[longest] / num_rows, worth
