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
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import chain

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


class Acceptance:
    """Turns drafters' estimates into survival probabilities and learns from each verification.

    What is known of requests lies in arrays, so that a step's verifications are learned from at once: each request has
    a place in them.

    Args:
        max_draft: longest draft of a row, tokens.
    """

    def __init__(self, max_draft: int) -> None:
        self._places: dict[int, int] = {}
        self._free_places: list[int] = []
        self._requests: FloatArray = np.zeros((0, 2))  # [num_places, 2], log-odds and their precision
        self._cells: IntArray = np.zeros((0, max_draft), dtype=np.int64)  # [num_places, max_draft], of drafts at hand …
        self._chances: FloatArray = np.zeros((0, max_draft))  # [num_places, max_draft], … and their conditional chance
        self._verified: list[int] = []  # place, drafts, accepted, of each row that nobody has learned from yet
        self._judged: FloatArray = np.zeros((2, max_draft))  # of those that were learned from, as `learn` returns it
        self._tables: dict[str, int] = {}
        self._table: FloatArray = np.zeros((0, 2))  # [num_cells, 2], trials and accepted ones

    def start(self, request_id: int) -> None:
        """A request without a past."""
        if self._verified:
            self._take_verified()  # before the place of one that left is another's
        if request_id in self._places:
            self.stop(request_id)
        if not self._free_places:
            self._grow()
        place = self._places[request_id] = self._free_places.pop()
        self._requests[place, 0], self._requests[place, 1] = 0.0, START_PRECISION
        self._chances[place, 0] = 0.0

    def stop(self, request_id: int) -> None:
        """Forget the request; the table keeps what it taught."""
        place = self._places.pop(request_id, None)
        if place is not None:
            self._free_places.append(place)

    def calibrate(
        self, request_ids: Sequence[int], drafters: Sequence[str], estimates: Sequence[Sequence[float]]
    ) -> FloatArray:
        """Survival of each draft, from the drafters' estimates of it; `observe` will say what became of it.

        Args:
            request_ids: [num_rows].
            drafters: [num_rows], who proposed.
            estimates: [num_rows], the drafters' survival of each draft at hand.

        Returns:
            [num_rows, max_draft], 0 where there is no draft; what is at hand beyond max_draft is left out.
        """
        if self._verified:
            self._take_verified()  # before what was expected of them is overwritten
        for drafter in set(drafters) - self._tables.keys():
            self._add_table(drafter)
        places, tables = self._places, self._tables
        lengths = list(map(len, estimates))
        num_drafts, num_rows = sum(lengths), len(lengths)
        packed = struct.pack(
            f"{num_drafts}d{3 * num_rows}q",
            *chain.from_iterable(estimates),
            *lengths,
            *[places[request_id] for request_id in request_ids],
            *[tables[drafter] for drafter in drafters],
        )
        return _calibrate(
            np.frombuffer(packed, np.float64, num_drafts),
            np.frombuffer(packed, np.int64, offset=8 * num_drafts).reshape(3, num_rows),
            self._requests,
            self._table,
            self._cells,
            self._chances,
        )

    def observe(self, request_id: int, num_drafted: int, num_accepted: int) -> None:
        """Of the request's drafts, as last calibrated, num_drafted were verified and the first num_accepted passed."""
        place = self._places.get(request_id)
        if place is not None:
            self._verified += (place, num_drafted, num_accepted)

    def learn(self) -> FloatArray:
        """Learn from what was observed since the last call.

        Returns:
            How many drafts were expected to pass, and how many did, by position, [2, max_draft].
        """
        if self._verified:
            self._take_verified()
        judged, self._judged = self._judged, np.zeros_like(self._judged)
        return judged

    def _take_verified(self) -> None:
        verified = np.array(self._verified, dtype=np.int64).reshape(-1, 3)
        self._verified.clear()
        _learn(verified, self._requests, self._table, self._cells, self._chances, self._judged)

    def _grow(self) -> None:
        num_places = len(self._requests)
        more = max(num_places, 16)
        self._requests, self._cells, self._chances = (
            np.concatenate([known, np.zeros((more, known.shape[1]), dtype=known.dtype)])
            for known in (self._requests, self._cells, self._chances)
        )
        self._free_places.extend(range(num_places + more - 1, num_places - 1, -1))

    def _add_table(self, drafter: str) -> None:
        self._tables[drafter] = len(self._table)
        self._table = np.concatenate([self._table, np.zeros((_CELLS, 2))])


@numba.njit(cache=True, nogil=True)
def _calibrate(
    estimates: FloatArray,
    which: IntArray,
    requests: FloatArray,
    table: FloatArray,
    cells: IntArray,
    chances: FloatArray,
):
    """Survival as `Acceptance.calibrate` returns it; puts each draft's cell and chance into the request's place.

    estimates of one row stand behind those of the one before; which is [3, num_rows]: how many, the request's place,
    and where the drafter's table begins.
    """
    num_rows = which.shape[1]
    survival = np.zeros((num_rows, cells.shape[1]))
    first = 0
    for row in range(num_rows):
        length, place, start = which[0, row], which[1, row], which[2, row]
        odds = math.exp(requests[place, 0])
        said = alive = 1.0
        for i in range(min(length, cells.shape[1])):
            estimate = estimates[first + i]
            if estimate <= 0.0:
                break
            conditional = min(max(estimate / said, LEAST), MOST)
            said = estimate
            cell = start + min(i, NUM_POSITIONS - 1) * NUM_BUCKETS + int(conditional * NUM_BUCKETS)
            chance = (table[cell, 1] + PRIOR_TRIALS * conditional) / (table[cell, 0] + PRIOR_TRIALS)
            chance = chance * odds / (1.0 + chance * (odds - 1.0))
            chance = min(max(chance, LEAST), MOST)
            alive *= chance
            survival[row, i], cells[place, i], chances[place, i] = alive, cell, chance
        first += length
    return survival


@numba.njit(cache=True, nogil=True)
def _learn(
    verified: IntArray,
    requests: FloatArray,
    table: FloatArray,
    cells: IntArray,
    chances: FloatArray,
    judged: FloatArray,
) -> None:
    """Take in verifications, [num_rows, 3] place, drafts and accepted ones; adds to what `Acceptance.learn` returns."""
    keep = 1.0 - 1.0 / MEMORY_TRIALS
    for row in range(len(verified)):
        place, num_drafted, num_accepted = verified[row, 0], verified[row, 1], verified[row, 2]
        alive = 1.0
        for i in range(min(num_drafted, cells.shape[1])):
            chance = chances[place, i]
            if chance == 0.0:
                break  # nothing is known of it: a report of an earlier life
            alive *= chance
            judged[0, i] += alive
            if i > num_accepted:
                continue  # behind one that did not pass
            passed = 1.0 if i < num_accepted else 0.0
            judged[1, i] += passed
            cell = cells[place, i]
            table[cell, 0] = table[cell, 0] * keep + 1.0
            table[cell, 1] = table[cell, 1] * keep + passed
            # One step of Newton's method on the log-odds, whose curvature adds up as precision.
            precision = min(requests[place, 1] + chance * (1.0 - chance), MAX_PRECISION)
            moved = requests[place, 0] + (passed - chance) / precision
            requests[place, 0], requests[place, 1] = min(max(moved, -MAX_LOG_ODDS), MAX_LOG_ODDS), precision
        chances[place, 0] = 0.0  # said once
