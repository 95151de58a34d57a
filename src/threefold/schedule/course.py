"""Rows that go on token by token, reckoned all at once: with hundreds of them a loop is what a small model waits for.

Knows nothing about budgets, prompts or who waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
import numpy.typing as npt

from threefold.cache.manager import CacheManager
from threefold.schedule.running import Row
from threefold.step import RowColumns

IntArray = npt.NDArray[np.int64]


class Course:
    """Rows of a step in flight, each of which gets one token of it and has no drafts.

        tokens     [ known .............................. | on its way ]
                   0                             num_computed

    Args:
        rows: in the order of that step.
        num_computed: each row's tokens when that step is over, without the one it brings.

    Attributes:
        rows: those that are still here.
    """

    def __init__(self, rows: Sequence[Row] = (), num_computed: Iterable[int] = ()) -> None:
        self.rows = list(rows)
        num = len(self.rows)
        self._request_ids = [row.request.request_id for row in self.rows]
        self._limits: IntArray = np.empty((3, num), dtype=np.int64)  # computed, slots, tokens in all
        self._limits[0] = np.fromiter(num_computed, np.int64, num)
        self._limits[1] = [row.num_slots for row in self.rows]
        self._limits[2] = [row.request.max_total_tokens for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def join(self, others: Course) -> None:
        """More rows, behind these."""
        if not others.rows:
            return
        self.rows += others.rows
        self._request_ids += others._request_ids
        self._limits = np.concatenate([self._limits, others._limits], axis=1)

    def leave(self, is_here: Sequence[bool]) -> None:
        """Only these rows are still here."""
        self.rows = list(compress(self.rows, is_here))
        self._request_ids = list(compress(self._request_ids, is_here))
        self._limits = self._limits[:, np.array(is_here)]

    def end(self) -> bool:
        """Rows leave whose token on its way is their last by length. Returns whether there were any."""
        computed, _, total = self._limits
        is_here = computed + 1 < total
        if is_here.all():
            return False
        self.leave(is_here.tolist())
        return True

    def advance(self, cache: CacheManager) -> tuple[RowColumns, list[int]]:
        """The step in which each row is fed the token on its way; from now on that is the step in flight.

        Args:
            cache: has blocks enough.

        Returns:
            Its rows, and the places of those whose last token it brings, by length.
        """
        computed, slots, total = self._limits
        num = len(self.rows)
        new_blocks: list[tuple[int, ...]] = [()] * num
        for place in np.flatnonzero(computed >= slots).tolist():
            row = self.rows[place]
            grown = cache.allocate(row.request, int(computed[place]) + 1)
            assert grown is not None, "who asks for a step has counted the blocks"
            new_blocks[place] = grown
            row.num_slots += len(grown) * cache.block_size
            slots[place] = row.num_slots
        before: list[int] = computed.tolist()
        computed += 1
        ending: list[int] = np.flatnonzero(computed + 1 >= total).tolist()
        columns = RowColumns(
            self._request_ids.copy(), before, [1] * num, [0] * num, new_blocks, [True] * num, [0] * num
        )  # fmt: skip
        return columns, ending
