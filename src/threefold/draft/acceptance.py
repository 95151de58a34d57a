"""How likely drafts are to survive, learned from what verification did with earlier ones.

Knows nothing about tokens or costs. The work is shared out so that nothing is learned twice:

    drafter      ranks its own drafts: an estimate for each, as good as a prior can be
    table        what such an estimate came to, by drafter, position and estimate; all requests together
    request      how far this request is from the table's average, as odds

A draft is tested only when all before it were accepted, so what is estimated is conditional: the chance that draft i
passes given that it is reached. A window that was accepted whole then needs no special case: it says nothing about the
drafts it did not have (the product-limit estimate of Kaplan and Meier, 1958). Compiled by numba: this lies between two
steps, and most batches are too small for numpy's calls to pay.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numba
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NUM_POSITIONS = 4
"""Positions kept apart: 1st, 2nd, 3rd, and all further ones."""
NUM_BUCKETS = 16
"""Stretches of the drafter's estimate kept apart."""
PRIOR_TRIALS = 8.0
"""Trials that the drafter's own estimate is worth."""
MEMORY_TRIALS = 200.0
"""Trials after which the table forgets."""
START_PRECISION = 2.0
"""Requests differ from the average by about this much (1 / variance of log-odds) …"""
MAX_PRECISION = 8.0
"""… and one that has been watched for long still moves by an eighth of what a trial says."""
MAX_LOG_ODDS = 5.0
LEAST, MOST = 0.005, 0.995
"""No draft is hopeless or certain."""

_CELLS = NUM_POSITIONS * NUM_BUCKETS


class _RequestState:
    """One request's distance from the average, and the drafts of it that are being verified."""

    __slots__ = ("cells", "chances", "log_odds", "odds", "precision")

    def __init__(self) -> None:
        self.log_odds = 0.0
        self.odds = 1.0
        self.precision = START_PRECISION
        self.cells: list[int] = []
        self.chances: list[float] = []


class Acceptance:
    """Turns drafters' estimates into survival probabilities and learns from each verification."""

    def __init__(self) -> None:
        self._requests: dict[int, _RequestState] = {}
        self._tables: dict[str, int] = {}
        self._trials: FloatArray = np.zeros(0)
        self._accepted: FloatArray = np.zeros(0)

    def start(self, request_id: int) -> None:
        """A request without a past."""
        self._requests[request_id] = _RequestState()

    def stop(self, request_id: int) -> None:
        """Forget the request; the table keeps what it taught."""
        self._requests.pop(request_id, None)

    def calibrate(
        self, request_ids: Sequence[int], drafters: Sequence[str], estimate: FloatArray
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """Survival of each draft, from the drafters' estimates of it.

        Args:
            request_ids: [num_rows].
            drafters: [num_rows], who proposed.
            estimate: [num_rows, max_draft], the drafters' survival, 0 where there is no draft.

        Returns:
            survival [num_rows, max_draft], and for `expect` each draft's table cell and conditional chance.
        """
        requests = self._requests
        odds = np.array([requests[request_id].odds for request_id in request_ids])
        tables = np.array([self._table_of(name) for name in drafters])
        return _calibrate(estimate, tables, odds, self._trials, self._accepted)

    def expect(self, request_ids: Sequence[int], cells: IntArray, chances: FloatArray) -> None:
        """Drafts of these requests are about to be verified; `observe` will say how it went."""
        for request_id, row_cells, row_chances in zip(request_ids, cells.tolist(), chances.tolist(), strict=True):
            state = self._requests[request_id]
            state.cells, state.chances = row_cells, row_chances

    def observe(self, request_id: int, num_drafted: int, num_accepted: int) -> float:
        """Of the expected drafts num_drafted were verified and the first num_accepted passed.

        Returns:
            How many were expected to.
        """
        state = self._requests.get(request_id)
        if state is None or not state.cells:
            return num_accepted
        expected = sum(accumulate(state.chances[:num_drafted], mul))
        num_tested = min(num_accepted + 1, num_drafted, len(state.cells))
        keep = 1.0 - 1.0 / MEMORY_TRIALS
        trials, accepted = self._trials, self._accepted
        for i in range(num_tested):
            passed = 1.0 if i < num_accepted else 0.0
            cell, chance = state.cells[i], state.chances[i]
            trials[cell] = trials[cell] * keep + 1.0
            accepted[cell] = accepted[cell] * keep + passed
            # One step of Newton's method on the log-odds, whose curvature adds up as precision.
            state.precision = min(state.precision + chance * (1.0 - chance), MAX_PRECISION)
            moved = state.log_odds + (passed - chance) / state.precision
            state.log_odds = min(max(moved, -MAX_LOG_ODDS), MAX_LOG_ODDS)
        state.odds = math.exp(state.log_odds)
        state.cells = []
        return expected

    def _table_of(self, drafter: str) -> int:
        """First cell of the drafter's table."""
        first = self._tables.get(drafter)
        if first is None:
            first = self._tables[drafter] = len(self._trials)
            self._trials, self._accepted = (np.append(old, np.zeros(_CELLS)) for old in (self._trials, self._accepted))
        return first


@numba.njit(cache=True, nogil=True)
def _calibrate(estimate: FloatArray, tables: IntArray, odds: FloatArray, trials: FloatArray, accepted: FloatArray):
    """(survival, cells, chances) as `Acceptance.calibrate` returns them; tables and odds are [num_rows]."""
    survival = np.zeros_like(estimate)
    cells = np.zeros(estimate.shape, dtype=np.int64)
    chances = np.zeros_like(estimate)
    for row in range(len(estimate)):
        said = alive = 1.0
        for i in range(estimate.shape[1]):
            if estimate[row, i] <= 0.0:
                break
            conditional = min(max(estimate[row, i] / said, LEAST), MOST)
            said = estimate[row, i]
            cell = tables[row] + min(i, NUM_POSITIONS - 1) * NUM_BUCKETS + int(conditional * NUM_BUCKETS)
            chance = (accepted[cell] + PRIOR_TRIALS * conditional) / (trials[cell] + PRIOR_TRIALS)
            chance = chance * odds[row] / (1.0 + chance * (odds[row] - 1.0))
            chance = min(max(chance, LEAST), MOST)
            alive *= chance
            survival[row, i], cells[row, i], chances[row, i] = alive, cell, chance
    return survival, cells, chances
