"""What the tensor side keeps of each running request, in persistent arrays, so that a step is built without loops.

    token_ids[row]    [ prompt | output ............ | drafts at hand ]
                      0                        lengths[row]     + num_drafts[row]
    block_tables[row] [ block of tokens 0..15 | of 16..31 | ... ]

Drafts stand right behind the committed tokens, so prompt chunks, next tokens and drafts are fed by one gather. On a CPU
these arrays are the device's memory. Knows nothing about scheduling: plans say who joins, grows and leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threefold.request import SamplingParams
from threefold.sample.table import SamplingTable
from threefold.step import NewRow


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
        block_size: tokens a block.
    """

    def __init__(self, max_rows: int, max_tokens: int, block_size: int, max_draft: int) -> None:
        # The last committed token may have drafts and a bonus behind it that length will cut off.
        width = max_tokens + max_draft + 1
        self.token_ids = np.zeros((max_rows, width), dtype=np.int32)
        self.lengths = np.zeros(max_rows, dtype=np.int64)
        self.num_drafts = np.zeros(max_rows, dtype=np.int64)
        self.block_tables = np.zeros((max_rows, -(-width // block_size)), dtype=np.int32)
        self.num_blocks = np.zeros(max_rows, dtype=np.int64)
        self.sampling = SamplingTable(max_rows)
        self.params: list[SamplingParams | None] = [None] * max_rows
        self.block_size = block_size
        self._row_of: dict[int, int] = {}
        self._free = list(range(max_rows - 1, -1, -1))

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._row_of

    def find(self, request_id: int) -> int:
        """The row of a request that was added."""
        return self._row_of[request_id]

    def add(self, new: NewRow) -> int:
        """Set up a row; raises when the plan runs more requests than there are rows."""
        if not self._free:
            raise RuntimeError(f"the plan runs more than {len(self.lengths)} requests")
        row = self._free.pop()
        length = len(new.token_ids)
        self.token_ids[row, :length] = new.token_ids
        self.lengths[row] = length
        self.num_drafts[row] = 0
        self.num_blocks[row] = 0
        self.sampling.set(row, new)
        self.params[row] = new.params
        self._row_of[new.request_id] = row
        return row

    def drop(self, request_id: int) -> bool:
        """Forget a row; False when it was never set up (a request that ended while it waited)."""
        row = self._row_of.pop(request_id, None)
        if row is None:
            return False
        self.sampling.clear(row)
        self.params[row] = None
        self._free.append(row)
        return True

    def grow(self, row: int, blocks: Sequence[int]) -> None:
        """Append blocks to a row's table."""
        start = int(self.num_blocks[row])
        self.block_tables[row, start : start + len(blocks)] = blocks
        self.num_blocks[row] = start + len(blocks)

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

    def draft(self, row: int, num_tokens: int) -> list[int]:
        """The first drafts at hand."""
        start = int(self.lengths[row])
        drafts: list[int] = self.token_ids[row, start : start + num_tokens].tolist()
        return drafts
