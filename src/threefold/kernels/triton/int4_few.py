"""The product of few tokens with packed 4-bit weights, read once: every warp of a program takes chunks of its own.

What counts is how many bytes of the weight are under way and how few steps wait for one another, so a program's tile is
small and its warps divide the inputs, not the tile; their sums are added in the program, always in one order. A scale
multiplies the sum of its group, which is less work than its weights are. Contract: kernels/int4.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl

from threefold.kernels.triton.int4_results import store_tile, tile_rows
from threefold.kernels.triton.int4_values import spread


@triton.jit(do_not_specialize_on_alignment=["num_tokens"])
def few_rows(x_ptr, units_ptr, scale_zeros_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr,
             NUM_INPUTS: tl.constexpr, NUM_CHUNKS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr,
             HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the weight's rows times BLOCK_M tokens, or what a split of the inputs adds to them."""
    dtype = x_ptr.dtype.element_ty
    num_rows: tl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    chunk: tl.constexpr = 4 * UNITS
    is_odd_group: tl.constexpr = chunk % GROUP != 0 and GROUP % chunk != 0
    share: tl.constexpr = (NUM_CHUNKS + PARTS * SPLITS - 1) // (PARTS * SPLITS)
    rows, is_row = tile_rows(tl.program_id(1), NUM_OUTPUTS, IS_GATED, BLOCK_N)
    tokens = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_token = tokens < num_tokens
    places = rows[None, :, None] * UNITS + tl.arange(0, UNITS)[None, None, :]
    acc = tl.zeros((PARTS, BLOCK_N, BLOCK_M), dtype=tl.float32)
    first = tl.program_id(2) * (share * PARTS) + tl.arange(0, PARTS)
    for step in tl.range(0, share):
        number = first + step * PARTS
        is_chunk = number < NUM_CHUNKS
        is_here = is_chunk[:, None] & is_row[None, :]
        units = tl.load(units_ptr + number[:, None, None] * (num_rows * UNITS) + places, mask=is_here[:, :, None],
                        other=0, eviction_policy="evict_first")  # fmt: skip
        for quarter in tl.static_range(4):
            if is_odd_group or quarter * UNITS % GROUP == 0:
                group = (number * chunk + quarter * UNITS) // GROUP
                both = tl.load(scale_zeros_ptr + group[:, None] * num_rows + rows[None, :], mask=is_here, other=0)
                zero = (both >> 16).to(tl.int16).to(dtype, bitcast=True)[:, :, None]
                scale = both.to(tl.int16).to(dtype, bitcast=True).to(tl.float32)[:, :, None]
                of_group = tl.zeros((PARTS, BLOCK_N, BLOCK_M), dtype=tl.float32)
            inputs = number[:, None] * chunk + quarter * UNITS + tl.arange(0, UNITS)[None, :]
            is_input = inputs < NUM_INPUTS  # else past the last chunk, or in what fills it
            x = tl.load(x_ptr + tokens[None, None, :] * NUM_INPUTS + inputs[:, :, None],
                        mask=is_token[None, None, :] & is_input[:, :, None], other=0.0)  # fmt: skip
            of_group = tl.dot(spread(units, quarter, dtype) - zero, x, of_group)
            if is_odd_group or quarter == 3 or (quarter + 1) * UNITS % GROUP == 0:
                acc += of_group * scale
    store_tile(tl.sum(acc, 0), tl.program_id(1), tokens, is_token, bias_ptr, out_ptr, num_tokens, tl.program_id(2),
               NUM_OUTPUTS, HAS_BIAS, IS_GATED, SPLITS, BLOCK_M, BLOCK_N, dtype)  # fmt: skip
