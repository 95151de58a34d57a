"""How products with packed 4-bit weights are cut on one H200: data, no code to speak of.

`python -m threefold.bench.kernels_int4` measures them again.
"""

from __future__ import annotations

from typing import NamedTuple


class Int4Sizes(NamedTuple):
    """How one product is cut."""

    block_tokens: int
    block_outputs: int
    block_units: int
    """Units of a chunk that a step of the loop takes at most; it takes four times as many inputs."""
    num_warps: int
    num_stages: int
    num_splits: int = 1
    """Programs that share the inputs of one tile; what they found is added afterwards, always in one order."""


MAX_TILED_TOKENS = 640
"""Up to here weights are dequantised in registers; beyond it into a buffer that torch multiplies with."""

PIECE_BYTES = 64 << 20
"""Of that buffer: a piece of the weight, still in the card's cache when it is multiplied with."""

MAX_FEW_TOKENS = 32
"""Up to here a sum is made in one order however many tokens there are: the table's block_units and the splits are the
same, and tiles are too narrow for the wider instructions of the tensor cores."""

_NUM_MULTIPROCESSORS = 132
_LEAST_CHUNKS = 4
"""A program's share of the inputs is no shorter, else its beginning and end are all it does."""
_TILES = (  # (most tokens, sizes), in order
    (8, Int4Sizes(8, 16, 64, 1, 6)),
    (16, Int4Sizes(16, 16, 64, 1, 6)),
    (32, Int4Sizes(32, 32, 64, 2, 5)),
    (64, Int4Sizes(64, 64, 64, 4, 4)),
    (128, Int4Sizes(128, 64, 32, 4, 4)),
    (MAX_TILED_TOKENS, Int4Sizes(128, 128, 32, 8, 4)),
)
_GATED_TILES = (  # a program has the gate's outputs and as many of what it is multiplied with
    (8, Int4Sizes(8, 16, 64, 1, 4)),
    (16, Int4Sizes(16, 16, 64, 1, 4)),
    (32, Int4Sizes(32, 32, 64, 2, 4)),
    (64, Int4Sizes(64, 64, 32, 4, 4)),
    (128, Int4Sizes(128, 64, 32, 4, 3)),
    (MAX_TILED_TOKENS, Int4Sizes(128, 64, 32, 4, 3)),
)


def int4_sizes(num_tokens: int, num_outputs: int, num_chunks: int, *, is_gated: bool) -> Int4Sizes | None:
    """Sizes for a product; None = dequantise first.

    Args:
        num_tokens: tokens.
        num_outputs: numbers that come out.
        num_chunks: chunks of inputs (kernels/int4.py).
        is_gated: the weight has twice as many outputs.
    """
    tiles = _GATED_TILES if is_gated else _TILES
    found = next((sizes for most, sizes in tiles if num_tokens <= most), None)
    if found is None:
        return None
    cut, num = (tiles[0][1], 1) if num_tokens <= MAX_FEW_TOKENS else (found, num_tokens)
    programs = -(-num_outputs // cut.block_outputs) * -(-num // cut.block_tokens)
    splits = min(_NUM_MULTIPROCESSORS // programs, num_chunks // _LEAST_CHUNKS)
    return found._replace(num_splits=max(1, splits))
