"""What asking for drafts yields, and from that the length worth asking for.

Knows nothing about single requests. For all of them together it remembers how likely the drafts that came back were to
survive, as a histogram by position; that does not depend on the load, so a change of load needs no new experience.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numba
import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.outlook import NUM_BUCKETS, PRIOR_ASKS, Outlook, bucket_of, reckon

FloatArray = npt.NDArray[np.float64]

PRIOR_CHANCE = 0.7
"""The guess for the first draft of a drafter nobody knows; for longer drafts, what the shorter ones lead to expect."""
PRIOR_HITS = 0.5
"""The guess at how often looking up finds anything."""
PRIOR_TOKENS = 4.0
"""Tokens that drafters' word is worth at first …"""
POSITION_TOKENS = 16.0
"""… and so many tokens of a position are worth as much as what became of all positions together."""
MEMORY_ASKS = 250.0
"""Askings after which the histogram forgets, and …"""
MEMORY_TIMES = 2.0
"""… in addition so many times as many as came since it was last looked at."""


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
        verify_ms: what each draft that is verified takes of the host while the device waits.
    """

    def __init__(
        self, max_draft: int, *, has_rounds: bool = True, prior_chance: float = PRIOR_CHANCE, verify_ms: float = 0.0
    ) -> None:
        self._max_draft = max_draft
        self._verify_ms = verify_ms
        self._prior_chance = prior_chance
        self._prior_given = 1.0 if has_rounds else PRIOR_HITS
        self._has_rounds = has_rounds
        self._survival = 1.0 - (np.arange(NUM_BUCKETS) + 0.5) / NUM_BUCKETS  # [NUM_BUCKETS], most likely first
        self._asks = np.zeros(max_draft)  # [max_draft], rows asked for a draft at least that long
        self._counts = np.zeros((max_draft, NUM_BUCKETS))  # [max_draft, NUM_BUCKETS], of them, drafts by survival
        self._new_asks = [0] * (max_draft + 1)  # by length, not taken in yet
        self._new_counts = np.zeros((max_draft, NUM_BUCKETS))  # the same of drafts
        self._judged = np.zeros((2, max_draft))  # [2, max_draft], drafts that should have passed, and that did

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

    def judge(self, judged: FloatArray) -> None:
        """Drafts were verified: so many were expected to survive, and so many did, by position, [2, max_draft].

        What is known of survival was known when the drafts came; verification knows better.
        """
        self._judged += judged

    def share_known(self, length: int) -> float:
        """Of what an outlook says of drafts of a length, the share that was seen rather than guessed."""
        num_asks = float(self._asks[length - 1])
        return num_asks / (num_asks + PRIOR_ASKS)

    def outlook(self, num_rows: int, num_asked: int, cost: CostCurve, shape: StepShape) -> Outlook:
        """What to expect of asking num_asked of num_rows rows, when the next step is of about this shape.

        For every length the drafts it can be expected to bring are verified down to the survival that pays best; the
        length is best with which the step commits most a millisecond.
        """
        self._take_asks()
        start_ms, round_ms, row_ms, token_ms = cost.draft_figures
        each_ms = round_ms + num_asked * token_ms if self._has_rounds else 0.0  # token of a draft
        return Outlook(
            *reckon(
                self._asks,
                self._counts,
                self._survival,
                self._kept_shares(),
                self._prior_given,
                self._prior_chance,
                num_rows,
                num_asked,
                *cost.knots,
                shape.num_tokens,
                *cost.beside_knots(shape),
                start_ms + num_asked * row_ms - (round_ms if self._has_rounds else 0.0),
                each_ms,
                self._verify_ms,
            )
        )

    def _kept_shares(self) -> FloatArray:
        """What became of drafts, as shares of what was promised, [max_draft]."""
        promised, kept = self._judged
        of_all = (kept.sum() + PRIOR_TOKENS) / (promised.sum() + PRIOR_TOKENS)
        shares: FloatArray = (kept + of_all * POSITION_TOKENS) / (promised + POSITION_TOKENS)
        return shares

    def _take_asks(self) -> None:
        """Age what is known by the new askings and count them."""
        num_new = sum(self._new_asks)
        if not num_new:
            return
        keep = (1.0 - 1.0 / (MEMORY_ASKS + MEMORY_TIMES * num_new)) ** num_new
        _age(self._asks, self._counts, np.array(self._new_asks, dtype=np.float64), self._new_counts, keep)
        self._judged *= keep
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
def _count(survival: FloatArray, floor: float, counts: FloatArray):
    """Add drafts to a histogram and sum them up as `DraftYield.learn` returns them."""
    totals, worths = np.zeros(len(survival)), np.zeros(len(survival))
    for row in range(len(survival)):
        for i in range(survival.shape[1]):
            chance = survival[row, i]
            if chance <= 0.0:
                break
            counts[i, bucket_of(chance)] += 1.0
            totals[row] += chance
            worths[row] += max(chance - floor, 0.0)
    return totals, worths
