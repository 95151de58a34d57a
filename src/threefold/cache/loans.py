"""Blocks lent to a drafter that keeps KV of its own: what nobody needs now, given back the moment somebody does.

A loan never takes part in anybody's decision: lent blocks count as available, so the same requests are admitted, and as
many run, as without it. Nor may it cost prefix hits. While blocks are lent, cached ones are evicted earlier than they
would be; the names so lost are remembered, and once one of them is asked for, loans end before a cached block does,
until as many blocks have been taken as there are. Knows nothing about tokens or what the drafter does with its blocks.
"""

from __future__ import annotations

from collections import OrderedDict

from threefold.cache.blocks import BlockPool
from threefold.cache.prefix import PrefixIndex


class Loans:
    """Who has which lent blocks.

    Args:
        pool: whose blocks they are.
        index: names of cached blocks.
    """

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self._pool = pool
        self._index = index
        self._lent: OrderedDict[int, list[int]] = OrderedDict()  # by request id, least recently extended first
        self._recalled: list[int] = []
        self._evicted: OrderedDict[bytes, None] = OrderedDict()
        self._num_until_trusted = 0  # blocks to be taken before loans may cost cached ones again

    @property
    def num_blocks(self) -> int:
        """Blocks lent now."""
        return self._pool.num_lent

    def extend(self, request_id: int, num_blocks: int, num_spare: int) -> tuple[int, ...]:
        """Lend a request's drafter more blocks, so that it has num_blocks; all or nothing.

        Args:
            request_id: whose KV will be in them.
            num_blocks: blocks in all, those lent before included.
            num_spare: blocks that must stay available beside all loans.

        Returns:
            Block ids lent anew; () when it has enough, or when there are not enough to lend.
        """
        num_missing = num_blocks - len(self._lent.get(request_id, ()))
        if num_missing <= 0 or num_missing + num_spare > self._num_lendable:
            return ()
        self._remember(num_missing - self._pool.num_free)
        lent = self._pool.lend(num_missing)
        self._lent.setdefault(request_id, []).extend(lent)
        self._lent.move_to_end(request_id)
        return tuple(lent)

    def end(self, request_id: int) -> None:
        """The request left the batch."""
        self._pool.recall(self._lent.pop(request_id, ()))

    def recall(self, num_blocks: int) -> None:
        """Take back at least num_blocks, or all: whole loans, those first that were extended longest ago."""
        while num_blocks > 0 and self._lent:
            request_id, lent = self._lent.popitem(last=False)
            self._pool.recall(lent)
            self._recalled.append(request_id)
            num_blocks -= len(lent)

    def take_recalled(self) -> list[int]:
        """Request ids whose loans were taken back since the last call."""
        recalled, self._recalled = self._recalled, []
        return recalled

    def miss(self, name: bytes) -> None:
        """A prefix was looked for and not found."""
        if name in self._evicted:
            del self._evicted[name]
            self._num_until_trusted = self._pool.num_blocks

    def make_room(self, num_blocks: int) -> None:
        """A request is about to take so many blocks, which are available or lent."""
        self._num_until_trusted -= num_blocks
        num_short = num_blocks - self._pool.num_free
        if num_short <= 0 or not self._pool.num_lent:
            return
        if self._is_trusted:
            self._remember(min(num_short, self._pool.num_lent))
            self.recall(num_blocks - self._pool.num_available)
        else:
            self.recall(num_short)

    @property
    def _is_trusted(self) -> bool:
        return self._num_until_trusted <= 0

    @property
    def _num_lendable(self) -> int:
        return self._pool.num_available if self._is_trusted else self._pool.num_free

    def _remember(self, num_blocks: int) -> None:
        """The oldest cached blocks are about to be evicted on account of loans."""
        for block_id in self._pool.oldest_cached(max(num_blocks, 0)):
            self._evicted[self._index.name_of(block_id)] = None
        while len(self._evicted) > self._pool.num_blocks:
            self._evicted.popitem(last=False)
