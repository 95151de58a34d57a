"""Block ids and who needs them. Every block is in exactly one of four states:

    free      nobody holds it and nothing worth keeping is in it
    cached    nobody holds it, but its content is findable by hash; evicted least recently used first
    held      one or more requests hold it
    lent      a drafter has it until somebody needs it (loans.py)

Knows nothing about requests or tokens; the law of conservation, free + cached + held + lent = total, is kept here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import islice

from threefold.cache.prefix import PrefixIndex


class BlockPool:
    """Hands out blocks; every operation is O(1) a block."""

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        self.num_blocks = num_blocks
        self._index = index
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; block 0 is handed out first
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._num_holders = [0] * num_blocks
        self._lent: set[int] = set()

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free and cached."""
        return len(self._free) + len(self._cached)

    @property
    def num_obtainable(self) -> int:
        """Blocks that can be taken once all loans have ended."""
        return len(self._free) + len(self._cached) + len(self._lent)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but that are findable."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that requests hold, a shared one counted once."""
        return self.num_blocks - len(self._free) - len(self._cached) - len(self._lent)

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them that is worth keeping."""
        return len(self._free)

    @property
    def num_lent(self) -> int:
        """Blocks that drafters have until somebody needs them."""
        return len(self._lent)

    def take(self, num_blocks: int) -> list[int]:
        """Blocks for new content, held once each; free ones first, then the least recently used cached ones.

        The caller has made sure that so many are available.
        """
        free, cached, num_holders = self._free, self._cached, self._num_holders
        taken = []
        for _ in range(num_blocks):
            if free:
                block_id = free.pop()
            else:
                block_id, _ = cached.popitem(last=False)
                self._index.forget(block_id)
            num_holders[block_id] = 1
            taken.append(block_id)
        return taken

    def lend(self, num_blocks: int) -> list[int]:
        """Free blocks for a drafter, cached ones only when there are no free ones; so many are available."""
        lent = self.take(num_blocks)
        for block_id in lent:
            self._num_holders[block_id] = 0
        self._lent.update(lent)
        return lent

    def recall(self, block_ids: Iterable[int]) -> None:
        """Lent blocks are free again."""
        for block_id in block_ids:
            self._lent.remove(block_id)
            self._free.append(block_id)

    def oldest_cached(self, num_blocks: int) -> list[int]:
        """The cached blocks that would be evicted first."""
        return list(islice(self._cached, num_blocks))

    def hold(self, block_ids: Iterable[int]) -> None:
        """One more request holds findable blocks."""
        cached, num_holders = self._cached, self._num_holders
        for block_id in block_ids:
            if not num_holders[block_id]:
                del cached[block_id]
            num_holders[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """A request lets go; of the blocks that become cached, those that come first here are evicted first."""
        free, cached, num_holders, findable = self._free, self._cached, self._num_holders, self._index.findable
        for block_id in block_ids:
            num_holders[block_id] -= 1
            if not num_holders[block_id]:
                if block_id in findable:
                    cached[block_id] = None
                else:
                    free.append(block_id)

    def forget_cached(self) -> None:
        """Nothing is findable any more: cached blocks become free."""
        self._free.extend(self._cached)
        self._cached.clear()
        self._index.clear()

    def faults(self, holdings: Iterable[int]) -> list[str]:
        """What is wrong, given every block id that every request holds; one line each, empty = nothing."""
        holders = Counter(holdings)
        free, cached = set(self._free), set(self._cached)
        held = {block_id for block_id, count in enumerate(self._num_holders) if count}
        checks = {
            f"free {len(free)} + cached {len(cached)} + held {len(held)} + lent {len(self._lent)} is not "
            f"{self.num_blocks}": (
                len(self._free) + len(cached) + len(held) + len(self._lent)
                == self.num_blocks
                == len(free | cached | held | self._lent)
            ),
            "the counts of holders are not those of the requests": (
                all(count == holders[block_id] for block_id, count in enumerate(self._num_holders))
                and all(0 <= block_id < self.num_blocks for block_id in holders)
            ),
            "a cached block is not findable": cached <= self._index.findable,
            "a free or lent block is findable": not any(
                block_id in self._index.findable for block_id in free | self._lent
            ),
        }
        return [message for message, is_sound in checks.items() if not is_sound] + self._index.faults()
