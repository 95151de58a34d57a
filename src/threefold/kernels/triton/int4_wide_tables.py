"""How products of kernels/triton/int4_wide.py are cut on one H200: what was measured, and what follows for a shape."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class WideSizes(NamedTuple):
    """How one product is cut."""

    block_tokens: int
    block_rows: int
    """Rows of the weight: 256, or 128 where there is no gate."""
    num_whole: int
    """Tiles of rows that one program sums alone; of those after them each program has a split of the inputs."""
    num_splits: int = 1

    @property
    def stages(self) -> tuple[int, int]:
        """Tiles of tokens, a quarter of a chunk each, and chunks of units that lie in shared memory."""
        return _STAGES[self.block_rows, self.block_tokens]

    def num_tiles(self, num_tokens: int, num_rows: int) -> tuple[int, int]:
        """Tiles that are whole and that are split."""
        token_tiles = -(-num_tokens // self.block_tokens)
        num_split = -(-num_rows // self.block_rows) - self.num_whole
        return self.num_whole * token_tiles, num_split * token_tiles


NUM_MULTIPROCESSORS = 132
MIN_WIDE_TOKENS, MAX_WIDE_TOKENS = 33, 2048
"""Fewer are bound by memory, more are multiplied faster by torch, dequantised before."""

_STAGES = {(256, 32): (8, 5), (256, 64): (8, 4), (256, 128): (7, 3), (128, 32): (12, 6), (128, 64): (12, 5),
           (128, 128): (9, 4)}  # fmt: skip
_CHUNK_US = {(256, 32): 1.9, (256, 64): 2.25, (256, 128): 3.0, (128, 32): 1.3, (128, 64): 1.4, (128, 128): 1.7}
"""Time of a tile for one chunk of inputs, by rows and tokens of a tile."""
_TILE_US, _ADDING_US, _SUM_US = 3.5, 3.4, 1.4e-6
"""To begin and end a tile; to launch what adds splits; to write and read one of their sums."""
_MOST_SPLITS = 8


@cache
def likely_wide(num_tokens: int, num_rows: int, num_chunks: int, *, is_gated: bool) -> list[WideSizes]:
    """Cuts, the one that should take the least time first.

    Args:
        num_tokens: tokens.
        num_rows: rows of the weight.
        num_chunks: chunks of inputs (kernels/int4.py).
        is_gated: half of the rows are a gate's.
    """
    cuts = []
    for block_rows, block_tokens in _STAGES:
        if block_tokens < 2 * num_tokens and not (is_gated and block_rows < 256):
            num_tiles, token_tiles = -(-num_rows // block_rows), -(-num_tokens // block_tokens)
            full_rounds = num_tiles * token_tiles // NUM_MULTIPROCESSORS
            num_whole = full_rounds * NUM_MULTIPROCESSORS // token_tiles
            cuts.append(WideSizes(block_tokens, block_rows, num_tiles))
            if num_whole < num_tiles:
                cuts += [WideSizes(block_tokens, block_rows, num_whole, splits) for splits in _splits(num_chunks)]
    return sorted(cuts, key=lambda cut: likely_us(cut, num_tokens, num_rows, num_chunks))


def _splits(num_chunks: int) -> set[int]:
    """Numbers of splits, shares rounded up, that leave none without a chunk."""
    return {-(-num_chunks // share) for share in range(-(-num_chunks // _MOST_SPLITS), num_chunks)}


def likely_us(cut: WideSizes, num_tokens: int, num_rows: int, num_chunks: int) -> float:
    """The time that the first program takes, which has the longest of each round's items, and to add splits."""
    num_whole, num_split = cut.num_tiles(num_tokens, num_rows)
    num_items = num_whole + num_split * cut.num_splits
    rounds, whole_rounds = (-(-num // NUM_MULTIPROCESSORS) for num in (num_items, num_whole))
    chunk_us = _CHUNK_US[cut.block_rows, cut.block_tokens]
    whole_us = _TILE_US + num_chunks * chunk_us
    split_us = _TILE_US + -(-num_chunks // cut.num_splits) * chunk_us
    num_sums = num_split * cut.num_splits * cut.block_rows * cut.block_tokens
    adding_us = _ADDING_US + num_sums * _SUM_US if num_split else 0.0
    return whole_rounds * whole_us + (rounds - whole_rounds) * split_us + adding_us
