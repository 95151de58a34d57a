"""What a worker's rows have to do with drafters: who is told of which tokens, asked, and given what comes of it.

Drafters are told of tokens only when it matters, so whoever is not asked costs nothing. Knows nothing about models.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping

import numpy as np

from threefold.draft.drafter import RowTexts
from threefold.runner.drafting import Drafting, Offer
from threefold.runner.rows import Rows
from threefold.step import NewRow

MAX_GLIMPSED_ROWS = 16
"""With more, the host has no time to look ahead while the device works."""


class Proposing:
    """Rows and drafters.

    Args:
        rows: of the worker.
        drafting: the drafters.
    """

    def __init__(self, rows: Rows, drafting: Drafting) -> None:
        self._rows = rows
        self._drafting = drafting
        self._num_told = np.zeros_like(rows.lengths)  # [max_rows] tokens of each row that the drafters know

    def start(self, new: NewRow) -> None:
        """A row was set up."""
        row, length = self._rows.find(new.request_id), len(new.token_ids)
        self._num_told[row] = length
        # The row's copy in a form that drafters copy as a whole; a tuple they would go through token by token.
        token_ids = array("i", self._rows.token_ids[row, :length].tobytes())
        self._drafting.start(new.request_id, token_ids, new.cache_salt)

    def stop(self, request_id: int) -> None:
        """A row is about to be dropped."""
        self.tell([request_id])
        self._drafting.stop(request_id)

    def tell(self, request_ids: Iterable[int]) -> None:
        """Catch the drafters up with rows."""
        if not self._drafting.has_drafters:
            return
        told = {}
        for request_id in request_ids:
            row = self._rows.find(request_id)
            token_ids = self._rows.since(row, int(self._num_told[row]))
            if token_ids:
                self._num_told[row] += len(token_ids)
                told[request_id] = token_ids
        self._drafting.observe(told)

    def glimpse(self, request_ids: list[int]) -> dict[int, float]:
        """What rows that were not asked could have had."""
        self.tell(request_ids)
        return self._drafting.glimpse(request_ids)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Offer]:
        """The next drafts, by request id: kept with the rows, and what control is told of them."""
        if not wanted:
            return {}
        if self._drafting.can_draft_rows:
            if self._drafting.awaits(wanted):
                self.tell(wanted)
            return self._draft_rows(wanted)
        self.tell(wanted)
        proposals = self._drafting.propose(wanted)
        if len(proposals) == 1:
            ((request_id, proposal),) = proposals.items()
            self._rows.set_draft(self._rows.find(request_id), proposal.draft.token_ids)
        elif proposals:
            drafts = [proposal.draft.token_ids for proposal in proposals.values()]
            self._rows.set_drafts(self._rows.find_all(proposals), drafts)
        return {key: (proposal.draft.survival, proposal.drafter) for key, proposal in proposals.items()}

    def _draft_rows(self, wanted: Mapping[int, int]) -> dict[int, Offer]:
        """The same by a drafter that reads the rows itself."""
        request_ids, num_wanted = list(wanted), np.fromiter(wanted.values(), np.int64, len(wanted))
        rows = self._rows.find_all(request_ids)
        texts = RowTexts(self._rows.token_ids, self._rows.lengths, rows)
        drafts = self._drafting.draft_rows(request_ids, num_wanted, texts)
        if drafts is None:
            return {}
        self._num_told[rows] = self._rows.lengths[rows]
        num_faults = self._rows.put_drafts(rows, drafts, num_wanted, self._drafting.vocab_size)
        if num_faults:
            self._drafting.count_unusable(num_faults)
        return self._drafting.offers(request_ids, drafts)
