"""How products with packed 4-bit weights are cut on one H200: data, no code to speak of.

`python -m threefold.bench.kernels_int4` measures them again.
"""

from __future__ import annotations

from typing import NamedTuple

from threefold.kernels.triton.int4_wide_tables import (
    MAX_WIDE_TOKENS,
    MIN_WIDE_TOKENS,
    NUM_MULTIPROCESSORS,
    WideSizes,
    likely_us,
    likely_wide,
)


class FewSizes(NamedTuple):
    """How a product of few tokens is cut."""

    block_tokens: int
    block_rows: int
    """Rows of the weight; gated, half of them are the gate's."""
    num_parts: int
    """Warps of a program, which divide its inputs."""
    num_stages: int
    num_splits: int = 1


class Int4Sizes(NamedTuple):
    """How one product is cut."""

    block_tokens: int
    block_rows: int
    """Rows of the weight; gated, half of them are the gate's."""
    block_units: int
    """Units of a chunk that a step of the loop takes at most; it takes four times as many inputs."""
    num_warps: int
    num_stages: int
    num_splits: int = 1
    """Programs that share the inputs of one tile; what they found is added afterwards, always in one order."""


MAX_TILED_TOKENS = 640
"""Up to here weights are dequantised in registers; beyond it into a buffer that torch multiplies with."""

MIN_DEQUANTISED_TOKENS = 1024
"""From here on it is reckoned whether dequantising first is faster than kernels/triton/int4_wide.py."""

PIECE_BYTES = 256 << 20
"""Of that buffer, at most. Pieces that fit into the card's cache lose more at the ends of products than they save."""

MAX_FEW_TOKENS = 16
"""Up to here a sum is made in one order however many tokens there are: parts and splits are the same."""

_MOST_SPLITS = 8
_SUMS_CHUNKS, _ADDING_CHUNKS = 0.028, 0.8
"""What splits cost, in the time that a tile of 128 rows and 256 tokens takes for one chunk of inputs: to write and read
a tile's sums once, and to launch what adds them."""
_WIDE_CHUNK = 256
"""Inputs of a chunk, as nearly all weights have them."""
_BEGIN_US, _DEQUANTISE_US, _PRODUCT_US, _GATED_PRODUCT_US = 2.0, 0.65e-6, 1 / 388e6, 1 / 355e6
"""To begin both kernels; to dequantise a weight; torch's product, of a weight and a token."""
_MANY_ROWS = 8192
_FEW = (  # (most tokens, sizes), in order; weights of fewer than _MANY_ROWS
    (8, FewSizes(8, 32, 4, 3)),
    (MAX_FEW_TOKENS, FewSizes(16, 32, 4, 3)),
)
_FEW_MANY_ROWS = (
    (8, FewSizes(8, 32, 2, 3)),
    (MAX_FEW_TOKENS, FewSizes(16, 32, 2, 3)),
)
_TILES = (
    (32, Int4Sizes(32, 64, 64, 4, 4)),
    (64, Int4Sizes(64, 64, 64, 4, 4)),
    (MAX_TILED_TOKENS, Int4Sizes(128, 128, 32, 8, 3)),
)
_MEMORY_BOUND_TOKENS, _MEMORY_BOUND_PROGRAMS, _MEMORY_BOUND_SPLITS = 64, 256, 4
"""Up to so many tokens it only counts that enough programs read; a tile's sums are next to nothing."""


def int4_sizes(
    num_tokens: int, num_rows: int, num_chunks: int, *, is_gated: bool, can_be_wide: bool
) -> FewSizes | Int4Sizes | WideSizes | None:
    """Sizes for a product; None = dequantise first.

    Args:
        num_tokens: tokens.
        num_rows: rows of the weight.
        num_chunks: chunks of inputs (kernels/int4.py).
        is_gated: half of the rows are a gate's.
        can_be_wide: whether kernels/triton/int4_wide.py has a body for it.
    """
    few = _FEW if num_rows < _MANY_ROWS else _FEW_MANY_ROWS
    if num_tokens <= MAX_FEW_TOKENS:
        return next(sizes for most, sizes in few if num_tokens <= most)
    if can_be_wide and MIN_WIDE_TOKENS <= num_tokens <= MAX_WIDE_TOKENS:
        wide = likely_wide(num_tokens, num_rows, num_chunks, is_gated=is_gated)[0]
        other_us = dequantised_us(num_tokens, num_rows, num_chunks, is_gated=is_gated)
        is_slower = (
            num_tokens >= MIN_DEQUANTISED_TOKENS and likely_us(wide, num_tokens, num_rows, num_chunks) > other_us
        )
        return None if is_slower else wide
    cut = next((sizes for most, sizes in _TILES if num_tokens <= most), None)
    if cut is None:
        return None
    tiles = -(-num_rows // cut.block_rows) * -(-num_tokens // cut.block_tokens)
    if num_tokens <= _MEMORY_BOUND_TOKENS:
        splits = min(_MEMORY_BOUND_PROGRAMS // tiles, _MEMORY_BOUND_SPLITS, num_chunks)
        return cut._replace(num_splits=max(splits, 1))
    return cut._replace(num_splits=likely_splits(tiles, num_chunks)[0])


def dequantised_us(num_tokens: int, num_rows: int, num_chunks: int, *, is_gated: bool) -> float:
    """The time that a product of many tokens takes whose weight is dequantised first."""
    num_weights = num_rows * num_chunks * _WIDE_CHUNK
    product_us = _GATED_PRODUCT_US if is_gated else _PRODUCT_US
    return _BEGIN_US + num_weights * (_DEQUANTISE_US + num_tokens * product_us)


def likely_splits(num_tiles: int, num_chunks: int) -> list[int]:
    """Numbers of splits, the one that should take the least time first."""

    def chunks(num_splits: int) -> float:
        waves = -(-num_tiles * num_splits // NUM_MULTIPROCESSORS)
        adding = 0.0 if num_splits == 1 else _ADDING_CHUNKS + _SUMS_CHUNKS * num_tiles * num_splits
        return waves * -(-num_chunks // num_splits) + adding

    return sorted(range(1, min(_MOST_SPLITS, num_chunks) + 1), key=chunks)
