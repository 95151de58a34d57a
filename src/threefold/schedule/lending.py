"""Which rows get blocks for a drafter's own KV: those that are asked for drafts, from what everybody else leaves over.

Knows lengths only. What is lent today may be recalled tomorrow; the drafter then goes without and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from threefold.cache.loans import Loans
from threefold.step import RowPlan


class Lending:
    """Extends loans as rows grow.

    Args:
        loans: the cache's.
        block_tokens: tokens of the drafter's KV that a block holds; 0 = no drafter keeps any.
    """

    def __init__(self, loans: Loans, block_tokens: int) -> None:
        self._loans = loans
        self._block_tokens = block_tokens

    def lend(self, plans: Sequence[RowPlan], num_spare: int) -> dict[int, tuple[int, ...]]:
        """Blocks lent anew, by request id.

        Args:
            plans: the step; after it a row has at most one token more than it feeds, and next_draft drafts.
            num_spare: blocks that must stay available beside all loans.
        """
        if not self._block_tokens:
            return {}
        lent = {}
        for request_id, num_computed, num_new, _, _, _, next_draft in plans:
            if next_draft:
                num_blocks = -(-(num_computed + num_new + 1 + next_draft) // self._block_tokens)
                block_ids = self._loans.extend(request_id, num_blocks, num_spare)
                if block_ids:
                    lent[request_id] = block_ids
        return lent
