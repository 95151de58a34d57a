"""The paged KV cache as the scheduler sees it: which blocks a request holds, and which prefixes need no computing.

Knows ids and hashes, never tensors. A request's blocks lie in order:

    block_ids    [ found by hash ... | taken ............ ]
    tokens       [ num_computed ........... | to come ... ]
                   full blocks of it are published
"""

from __future__ import annotations

from collections.abc import Iterable

from threefold.cache.blocks import BlockPool
from threefold.cache.loans import Loans
from threefold.cache.prefix import BlockHasher, PrefixIndex
from threefold.request import Request


class CacheManager:
    """Gives blocks to requests and shares those of equal prefixes.

    Attributes:
        block_size: tokens a block.
        loans: blocks that drafters have until a request needs them.
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self._has_prefix_cache = enable_prefix_caching
        self._hasher = BlockHasher(block_size)
        self._index = PrefixIndex()
        self._pool = BlockPool(num_blocks, self._index)
        self.loans = Loans(self._pool, self._index)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that a request could get, the lent ones and the findable ones that nobody holds included."""
        return self._pool.num_obtainable

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that nobody holds but that are findable."""
        return self._pool.num_cached

    @property
    def num_held_blocks(self) -> int:
        """Blocks that requests hold, a shared one counted once."""
        return self._pool.num_held

    def match(self, request: Request) -> int:
        """Hold the longest cached prefix for a request that holds nothing yet.

        At least one token is left to compute, or there would be no logits. Whoever wants the prompt's log-probabilities
        needs every token computed and finds nothing.

        Returns:
            Tokens found, a multiple of the block size; their blocks are the request's first ones now.
        """
        if not self._has_prefix_cache or request.params.prompt_logprobs is not None:
            return 0
        num_full = (request.num_tokens - 1) // self.block_size
        self._extend_hashes(request, num_full)
        names = request.block_hashes[:num_full]
        found = self._index.find(names)
        if len(found) < num_full:
            self.loans.miss(names[len(found)])
        self._pool.hold(found)
        request.block_ids += found
        return len(found) * self.block_size

    def allocate(self, request: Request, num_tokens: int, num_spare: int = 0) -> tuple[int, ...] | None:
        """Let the request hold slots for num_tokens, all or nothing.

        Args:
            request: who needs them.
            num_tokens: slots to hold in all, those held already included.
            num_spare: blocks that must still be available to others afterwards.

        Returns:
            Block ids appended to the request's; None, and nothing changed, when there are not enough.
        """
        num_missing = -(-num_tokens // self.block_size) - len(request.block_ids)
        if num_missing <= 0:
            return ()
        if num_missing + num_spare > self._pool.num_obtainable:
            return None
        self.loans.make_room(num_missing)
        taken = self._pool.take(num_missing)
        request.block_ids += taken
        return tuple(taken)

    def publish(self, request: Request, num_before: int) -> None:
        """Make the blocks that filled up since num_before computed tokens findable."""
        if not self._has_prefix_cache:
            return
        num_full = request.num_computed // self.block_size
        self._extend_hashes(request, num_full)
        hashes, block_ids = request.block_hashes, request.block_ids
        for position in range(num_before // self.block_size, num_full):
            self._index.publish(hashes[position], block_ids[position])

    def free(self, request: Request) -> None:
        """Let go of all the request's blocks, the last first: the beginning of a prefix is evicted last; loans end."""
        self.loans.end(request.request_id)
        self._pool.release(reversed(request.block_ids))
        request.block_ids.clear()

    def reset_prefix_cache(self) -> bool:
        """Nothing computed so far is found any more; running requests keep their blocks. Always possible: True."""
        self._pool.forget_cached()
        return True

    def check_integrity(self, holders: Iterable[Request] = ()) -> None:
        """Check the law of conservation, given all requests that hold blocks; O(num_blocks), for tests and idle times.

        Raises:
            AssertionError: something leaked, was freed twice, or is findable that should not be.
        """
        faults = self._pool.faults(block_id for request in holders for block_id in request.block_ids)
        if faults:
            raise AssertionError("KV cache: " + "; ".join(faults))

    def _extend_hashes(self, request: Request, num_full: int) -> None:
        """Know the hashes of the first num_full blocks; tokens never change, so each is computed once."""
        hashes = request.block_hashes
        if len(hashes) < num_full:
            self._hasher.extend(hashes, request.token_ids, num_full, request.cache_salt)
