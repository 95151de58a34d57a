"""How products with FP8 weights are cut on one H200: data, no code to speak of.

`python -m threefold.bench.kernels_fp8` measures them again.
"""

from __future__ import annotations

from typing import NamedTuple

from threefold.kernels.fp8 import MAX_FEW_TOKENS_FP8


class FewSizes(NamedTuple):
    """How a product of few tokens, left as they are, is cut."""

    block_tokens: int
    block_rows: int
    """Rows of the weight; gated, half of them are the gate's."""
    block_inputs: int
    """Inputs that a warp takes in a step of its loop."""
    num_parts: int
    """Warps of a program, which divide its inputs."""
    num_stages: int


class TileSizes(NamedTuple):
    """How a product of FP8 with FP8 is cut where all tokens fit into one tile."""

    block_tokens: int
    block_rows: int
    """Rows of the weight; gated, half of them are the gate's."""
    block_inputs: int
    num_warps: int
    num_stages: int
    num_splits: int = 1
    """Programs that share the inputs of one tile; what they found is added afterwards, always in one order."""


class ManySizes(NamedTuple):
    """How a product of many tokens is cut: bound by the tensor cores."""

    block_m: int
    """Tokens of a program."""
    block_n: int
    """Outputs of a program."""
    block_k: int
    """Inputs a step of the loop takes."""
    num_warps: int
    num_stages: int
    group_m: int = 8
    """Neighbouring programs go through so many tiles of tokens before the next outputs."""


MAX_FEW_BY_BLOCK = 16
"""As MAX_FEW_TOKENS_FP8 where scales are by block, which have no tiles of their own."""

MAX_TILED_TOKENS = 64
"""Up to here one tile has all tokens; beyond it torch's product is the faster one."""

_MANY_ROWS = 16384
_FEW, _FEW_MANY_ROWS = FewSizes(8, 16, 128, 4, 4), FewSizes(8, 32, 128, 2, 4)
_ODD = (  # (most tokens, sizes), in order: scales by block, and shapes that products of FP8 with FP8 do not take
    (MAX_FEW_BY_BLOCK, FewSizes(16, 32, 128, 4, 3)),
    (1 << 62, FewSizes(32, 32, 128, 4, 3)),
)
_TILES = (
    (16, TileSizes(16, 64, 128, 4, 8)),
    (32, TileSizes(32, 64, 256, 4, 4)),
    (MAX_TILED_TOKENS, TileSizes(64, 64, 128, 4, 6)),
)
_NUM_MULTIPROCESSORS, _MOST_SPLITS = 132, 4
"""Tiles are split until there is a program for each multiprocessor."""


def fp8_few_sizes(num_tokens: int, num_rows: int, scale_inputs: int | None) -> FewSizes:
    """Sizes for tokens left as they are; up to MAX_FEW_TOKENS_FP8 one cut, so that a sum is made in one order.

    Args:
        num_tokens: tokens.
        num_rows: rows of the weight.
        scale_inputs: of a block that has a scale; None = scales are by output.
    """
    if num_tokens <= MAX_FEW_TOKENS_FP8:
        sizes = _FEW if num_rows < _MANY_ROWS else _FEW_MANY_ROWS
    else:
        sizes = next(sizes for most, sizes in _ODD if num_tokens <= most)
    if scale_inputs is None:
        return sizes
    return sizes._replace(block_inputs=power_within(scale_inputs, sizes.block_inputs))


def fp8_tile_sizes(num_tokens: int, num_rows: int) -> TileSizes:
    """Sizes for rounded tokens.

    Args:
        num_tokens: at most MAX_TILED_TOKENS.
        num_rows: rows of the weight.
    """
    sizes = next(sizes for most, sizes in _TILES if num_tokens <= most)
    splits = _NUM_MULTIPROCESSORS // -(-num_rows // sizes.block_rows)
    return sizes._replace(num_splits=max(1, min(_MOST_SPLITS, splits)))


def fp8_many_sizes(num_tokens: int, scale_inputs: int) -> ManySizes:
    """Sizes for many tokens and scales by block of so many inputs. Four warps have no room for tiles of 128 by 128."""
    block_k = power_within(scale_inputs, 128)
    if num_tokens <= MAX_TILED_TOKENS:
        return ManySizes(64, 64, block_k, 4, 4)
    return ManySizes(64, 128, block_k, 4, 4) if num_tokens <= 512 else ManySizes(128, 128, block_k, 8, 3)


def power_within(number: int, most: int) -> int:
    """The largest power of two that divides a number, up to `most`."""
    return min(number & -number, most)
