"""Names for prefixes: chained hashes of full blocks, and the map from a hash to the block that holds it.

Knows nothing about who holds a block or whether it is free; a block is findable here from publishing until eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from struct import Struct

_HASH_BYTES = 32
_TOKEN_BYTES = 8


def root_hash(salt: str) -> bytes:
    """Parent of a request's first block; different salts never meet again further down the chain.

    The leading zeros keep roots apart from blocks: no block's parent is the zero hash.
    """
    return sha256(bytes(_HASH_BYTES) + salt.encode("utf-8", "surrogatepass")).digest()


class BlockHasher:
    """Names full blocks: sha256 over the parent's name and a block's own tokens, so it stands for the whole prefix."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._pack_block = _packer(block_size)

    def extend(self, names: list[bytes], token_ids: Sequence[int], num_blocks: int, salt: str) -> None:
        """Append names until the first num_blocks blocks have theirs; at least one of them has none yet."""
        first, size = len(names), self._block_size
        num_tokens, block_bytes = (num_blocks - first) * size, size * _TOKEN_BYTES
        # Several blocks are packed at once; while tokens come one by one, one fills up now and then.
        pack = self._pack_block if num_tokens == size else _packer(num_tokens)
        content = pack(*token_ids[first * size : num_blocks * size])
        parent = names[-1] if names else root_hash(salt)
        for start in range(0, len(content), block_bytes):
            parent = sha256(parent + content[start : start + block_bytes]).digest()
            names.append(parent)


def _packer(num_tokens: int) -> Callable[..., bytes]:
    """Packs so many token ids, 64 bits each."""
    return Struct(f"{num_tokens}q").pack


class PrefixIndex:
    """Two maps that mirror each other: hash to block and block to hash.

    Attributes:
        findable: the blocks that are findable, at any time.
    """

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self.findable = self._hash_of.keys()

    def __len__(self) -> int:
        return len(self._block_of)

    def find(self, names: Iterable[bytes]) -> list[int]:
        """Blocks of these names, up to the first that is nowhere."""
        block_of, block_ids = self._block_of, []
        for name in names:
            block_id = block_of.get(name)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids

    def name_of(self, block_id: int) -> bytes:
        """The name under which a findable block is found."""
        return self._hash_of[block_id]

    def publish(self, name: bytes, block_id: int) -> None:
        """Make a full, computed block findable; the first block of equal content stays the one that is found."""
        if self._block_of.setdefault(name, block_id) == block_id:
            self._hash_of[block_id] = name

    def forget(self, block_id: int) -> None:
        """The block's content is about to be overwritten."""
        del self._block_of[self._hash_of.pop(block_id)]

    def clear(self) -> None:
        """Forget every block."""
        self._block_of.clear()
        self._hash_of.clear()

    def faults(self) -> list[str]:
        """What is wrong with the maps, one line each; empty = nothing."""
        mirrored = {name: block_id for block_id, name in self._hash_of.items()}
        return [] if mirrored == self._block_of else ["the maps hash -> block and block -> hash differ"]
