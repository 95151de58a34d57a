"""Names for prefixes: chained hashes of full blocks, and the map from a hash to the block that holds it.

Knows nothing about who holds a block or whether it is free; a block is findable here from publishing until eviction.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

_HASH_BYTES = 32


def root_hash(salt: str) -> bytes:
    """Parent of a request's first block; different salts never meet again further down the chain.

    The leading zeros keep roots apart from blocks: no block's parent is the zero hash.
    """
    return sha256(bytes(_HASH_BYTES) + salt.encode("utf-8", "surrogatepass")).digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of a full block: sha256 over its parent's name and its own tokens, so it stands for the whole prefix."""
    return sha256(parent + array("q", token_ids).tobytes()).digest()


class PrefixIndex:
    """Two maps that mirror each other: hash to block and block to hash."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._hash_of

    def find(self, name: bytes) -> int | None:
        """Block that holds this prefix's last block, None = nowhere."""
        return self._block_of.get(name)

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
