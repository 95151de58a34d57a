"""What the tensor side keeps of each running request, in persistent arrays, so that a step is built without loops.

    token_ids[row]    [ prompt | output ............ | drafts at hand ]
                      0                        lengths[row]     + num_drafts[row]
    block_tables[row] [ block of tokens 0..15 | of 16..31 | ... ]

Drafts stand right behind the committed tokens, so prompt chunks, next tokens and drafts are fed by one gather. Knows
nothing about scheduling: plans say who joins, grows and leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from threefold.draft.drafter import RowDrafts
from threefold.request import SamplingParams
from threefold.runner.loops import append_runs, prepare, put_drafts, put_runs
from threefold.sample.table import SamplingTable
from threefold.step import NewRow

IntArray = npt.NDArray[np.int64]


class Growth(NamedTuple):
    """Entries of the block tables that were written."""

    places: list[int]
    """row * max_blocks + index in the row's table."""
    block_ids: list[int]


class Rows:
    """Persistent per-row state; arrays are indexed by row.

    Attributes:
        token_ids: [max_rows, max_tokens + max_draft + 1] int32.
        lengths: [max_rows] committed tokens, int64.
        num_drafts: [max_rows] drafts at hand, int64.
        block_tables: [max_rows, max_blocks] int32; entries beyond a row's blocks are stale but in range.
        num_blocks: [max_rows] blocks held, int64.
        sampling: the rows' sampling parameters.
        params: what was asked, for what no array holds.
        has_prompt_logprobs: [max_rows] whether params.prompt_logprobs was asked for.
        block_size: tokens a block.
        row_of: the row of each request that has one.
        num_drops: [max_rows] how often each was dropped, int64; while it stands still the row has not changed hands.
    """

    def __init__(self, max_rows: int, max_tokens: int, block_size: int, max_draft: int) -> None:
        width = _row_width(max_tokens, max_draft)
        self.token_ids = np.zeros((max_rows, width), dtype=np.int32)
        self.lengths = np.zeros(max_rows, dtype=np.int64)
        self.num_drafts = np.zeros(max_rows, dtype=np.int64)
        self.block_tables = np.zeros((max_rows, table_width(max_tokens, block_size, max_draft)), dtype=np.int32)
        self.num_blocks = np.zeros(max_rows, dtype=np.int64)
        self.sampling = SamplingTable(max_rows)
        self.params: list[SamplingParams | None] = [None] * max_rows
        self.has_prompt_logprobs = np.zeros(max_rows, dtype=np.bool_)
        self.block_size = block_size
        self.row_of: dict[int, int] = {}
        self.num_drops = np.zeros(max_rows, dtype=np.int64)
        self._grown = Growth([], [])
        self._free = list(range(max_rows - 1, -1, -1))
        prepare()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self.row_of

    def find(self, request_id: int) -> int:
        """The row of a request that was added."""
        return self.row_of[request_id]

    def find_all(self, request_ids: Collection[int]) -> IntArray:
        """The rows of several."""
        return np.fromiter(map(self.row_of.__getitem__, request_ids), np.int64, len(request_ids))

    def add(self, new: NewRow) -> int:
        """Set up a row; raises when the plan runs more requests than there are rows."""
        if not self._free:
            raise RuntimeError(f"the plan runs more than {len(self.lengths)} requests")
        row = self._free.pop()
        length = len(new.token_ids)
        packed = Struct(f"{length}i").pack(*new.token_ids)  # in half the time that numpy takes over a tuple
        self.token_ids[row, :length] = np.frombuffer(packed, dtype=np.int32)
        self.lengths[row] = length
        self.num_drafts[row] = 0
        self.num_blocks[row] = 0
        self.sampling.set(row, new)
        self.params[row] = new.params
        self.has_prompt_logprobs[row] = new.params.prompt_logprobs is not None
        self.row_of[new.request_id] = row
        return row

    def drop(self, request_id: int) -> bool:
        """Forget a row; False when it was never set up (a request that ended while it waited)."""
        row = self.row_of.pop(request_id, None)
        if row is None:
            return False
        self.num_drops[row] += 1
        self.sampling.clear(row)
        self.params[row] = None
        self._free.append(row)
        return True

    def grow(self, row: int, blocks: Sequence[int]) -> None:
        """Append blocks to a row's table."""
        start, num = int(self.num_blocks[row]), len(blocks)
        if num == 1:  # many times as fast, and what happens while tokens come one by one
            self.block_tables[row, start] = blocks[0]
        else:
            self.block_tables[row, start : start + num] = blocks
        self.num_blocks[row] = start + num
        first = row * self.block_tables.shape[1] + start
        self._grown.places.extend(range(first, first + num))
        self._grown.block_ids.extend(blocks)

    def take_growth(self) -> Growth:
        """What was appended to the block tables since the last call, for whoever keeps a copy of them."""
        grown, self._grown = self._grown, Growth([], [])
        return grown

    def append_one(self, rows: IntArray, token_ids: IntArray) -> None:
        """Commit one token to each of these rows; drafts at hand are used up."""
        self.token_ids[rows, self.lengths[rows]] = token_ids
        self.lengths[rows] += 1
        self.num_drafts[rows] = 0
        self.sampling.observe_one(rows, token_ids)

    def append_runs(
        self,
        rows: IntArray,
        drawn: IntArray,
        first: IntArray,
        counts: IntArray,
        token_ids: Sequence[Sequence[int]],
    ) -> None:
        """Commit runs of the tokens drawn to these rows; drafts at hand are used up.

        Args:
            rows: [num_rows].
            drawn: [num_positions] tokens.
            first: [num_rows] where each row's run begins.
            counts: [num_rows] how long it is.
            token_ids: the same tokens, row by row.
        """
        append_runs(self.token_ids, self.lengths, self.num_drafts, rows, drawn, first, counts)
        self.sampling.observe_many(rows, token_ids)

    def append_many(self, rows: IntArray, token_ids: Sequence[Sequence[int]]) -> None:
        """Commit tokens of several rows; drafts at hand are used up."""
        self.append_runs(rows, *_one_behind_another(token_ids), token_ids)

    def set_drafts(self, rows: IntArray, token_ids: Sequence[Sequence[int]]) -> None:
        """Keep drafts of several rows for the next step."""
        run_ids, first, counts = _one_behind_another(token_ids)
        put_runs(self.token_ids, self.lengths, rows, run_ids, first, counts)
        self.num_drafts[rows] = counts

    def put_drafts(self, rows: IntArray, drafts: RowDrafts, num_wanted: IntArray, vocab_size: int) -> int:
        """The same of drafts that nobody has looked at yet: those with nonsense in them are left out.

        Args:
            rows: [num_rows].
            drafts: theirs; what is left out gets a count of 0.
            num_wanted: [num_rows] longer ones are nonsense, too.
            vocab_size: tokens are below it.

        Returns:
            Rows whose drafts were left out.
        """
        num_faults: int = put_drafts(
            self.token_ids, self.lengths, self.num_drafts, rows, num_wanted, vocab_size, *drafts
        )
        return num_faults

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Commit tokens; drafts at hand are used up."""
        start = int(self.lengths[row])
        self.token_ids[row, start : start + len(token_ids)] = token_ids
        self.lengths[row] = start + len(token_ids)
        self.num_drafts[row] = 0
        self.sampling.observe(row, token_ids)

    def set_draft(self, row: int, token_ids: Sequence[int]) -> None:
        """Keep a draft for the next step."""
        start = int(self.lengths[row])
        self.token_ids[row, start : start + len(token_ids)] = token_ids
        self.num_drafts[row] = len(token_ids)

    def use_drafts(self, rows: IntArray, num_drafts: IntArray) -> None:
        """A step with these rows was launched: the drafts that are not in it will never be verified."""
        self.num_drafts[rows] = num_drafts

    def since(self, row: int, start: int) -> list[int]:
        """A row's committed tokens from position start on."""
        token_ids: list[int] = self.token_ids[row, start : self.lengths[row]].tolist()
        return token_ids

    def draft(self, row: int, num_tokens: int) -> list[int]:
        """The first drafts at hand."""
        start = int(self.lengths[row])
        drafts: list[int] = self.token_ids[row, start : start + num_tokens].tolist()
        return drafts


def _one_behind_another(token_ids: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray, IntArray]:
    """All rows' tokens, where each row's begin and how many they are."""
    counts = np.fromiter(map(len, token_ids), np.int64, len(token_ids))
    ends = counts.cumsum()
    return np.fromiter(chain.from_iterable(token_ids), np.int64), ends - counts, counts


def table_width(max_tokens: int, block_size: int, max_draft: int) -> int:
    """Entries of a row's block table."""
    return -(-_row_width(max_tokens, max_draft) // block_size)


def _row_width(max_tokens: int, max_draft: int) -> int:
    """The last committed token may have drafts and a bonus behind it that length will cut off."""
    return max_tokens + max_draft + 1
