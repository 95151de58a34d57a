"""Products with packed 4-bit weights: dequantised in registers on their way from memory to the tensor cores.

A tile of the weight is the left operand, which the tensor cores take from registers; tokens are the right one. A value
costs two instructions in all: one of its own out of the unit, half a one each for zero and scale. kernels/triton/
int4_few.py has the same for few tokens. Contract: kernels/int4.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.int4 import PackedInt4
from threefold.kernels.triton.int4_few import few_rows
from threefold.kernels.triton.int4_results import add_splits, store_tile, tile_rows
from threefold.kernels.triton.int4_tables import FewSizes, Int4Sizes
from threefold.kernels.triton.int4_values import scale_and_zero, settled, spread


@triton.jit(do_not_specialize_on_alignment=["num_tokens"])
def _tiled(x_ptr, units_ptr, scale_zeros_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr,
           NUM_INPUTS: tl.constexpr, NUM_CHUNKS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr,
           HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_U: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the weight's rows times BLOCK_M tokens, or what a split of the inputs adds to them.

    Gated, the weight has twice as many rows as there are NUM_OUTPUTS.
    """
    dtype = x_ptr.dtype.element_ty
    num_rows: tl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    chunk: tl.constexpr = 4 * UNITS
    is_even: tl.constexpr = NUM_INPUTS == NUM_CHUNKS * chunk
    is_odd_group: tl.constexpr = chunk % GROUP != 0 and GROUP % chunk != 0
    pieces: tl.constexpr = UNITS // BLOCK_U
    share: tl.constexpr = (NUM_CHUNKS * pieces + SPLITS - 1) // SPLITS
    rows, is_row = tile_rows(tl.program_id(1), NUM_OUTPUTS, IS_GATED, BLOCK_N)
    tokens = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_token = tokens < num_tokens
    places = rows[:, None] * UNITS + tl.arange(0, BLOCK_U)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    first = tl.program_id(2) * share
    for index in tl.range(first, tl.minimum(first + share, NUM_CHUNKS * pieces)):
        number, piece = index // pieces, index % pieces * BLOCK_U
        units = tl.load(units_ptr + number * (num_rows * UNITS) + piece + places, mask=is_row[:, None], other=0)
        for quarter in tl.static_range(4):
            if is_odd_group or quarter * UNITS % GROUP == 0:
                group = (number * chunk + quarter * UNITS) // GROUP
                scale, zero = scale_and_zero(scale_zeros_ptr, group, rows, is_row, num_rows, dtype)
            inputs = number * chunk + quarter * UNITS + piece + tl.arange(0, BLOCK_U)
            x_places = x_ptr + tokens[None, :] * NUM_INPUTS + inputs[:, None]
            if is_even:
                x = tl.load(x_places, mask=is_token[None, :], other=0.0)
            else:
                x = tl.load(x_places, mask=is_token[None, :] & (inputs < NUM_INPUTS)[:, None], other=0.0)
            acc = tl.dot((spread(units, quarter, dtype) - zero) * scale, x, acc)
        acc = settled(acc)
    store_tile(acc, tl.program_id(1), tokens, is_token, bias_ptr, out_ptr, num_tokens, tl.program_id(2), NUM_OUTPUTS,
               HAS_BIAS, IS_GATED, SPLITS, BLOCK_M, BLOCK_N, dtype)  # fmt: skip


def tiled_body(
    weight: PackedInt4, bias: torch.Tensor | None, *, is_gated: bool
) -> Callable[[torch.Tensor, FewSizes | Int4Sizes], torch.Tensor]:
    """A function of x [num_tokens, in] and how to cut it, to [num_tokens, out], or half as many where gated."""
    num_chunks, num_rows, num_units = weight.units.shape
    num_outputs = num_rows // 2 if is_gated else num_rows
    beside = {"NUM_OUTPUTS": num_outputs, "HAS_BIAS": bias is not None, "IS_GATED": is_gated}
    inputs = {
        "NUM_INPUTS": weight.num_inputs,
        "NUM_CHUNKS": num_chunks,
        "UNITS": num_units,
        "GROUP": min(weight.group_size, num_chunks * num_units * 4),
    }
    given_bias = weight.scale_zeros if bias is None else bias

    def multiply(x: torch.Tensor, sizes: FewSizes | Int4Sizes) -> torch.Tensor:
        x = x.contiguous()
        num_tokens, splits = x.shape[0], sizes.num_splits
        out = x.new_empty((num_tokens, num_outputs))
        parts = out if splits == 1 else x.new_empty((splits, num_tokens, num_rows), dtype=torch.float32)
        # Tokens first, so that a weight's tile is read by all at once.
        grid = (triton.cdiv(num_tokens, sizes.block_tokens), triton.cdiv(num_rows, sizes.block_rows), splits)
        tensors = (x, weight.units, weight.scale_zeros, given_bias, parts, num_tokens)
        constants = {"SPLITS": splits, "BLOCK_M": sizes.block_tokens, "BLOCK_N": sizes.block_rows} | inputs | beside
        if isinstance(sizes, FewSizes):
            few_rows[grid](
                *tensors, PARTS=sizes.num_parts, num_warps=sizes.num_parts, num_stages=sizes.num_stages, **constants
            )
        else:
            _tiled[grid](
                *tensors,
                BLOCK_U=min(sizes.block_units, num_units),
                num_warps=sizes.num_warps,
                num_stages=sizes.num_stages,
                **constants,
            )
        if splits > 1:
            add_splits(parts, given_bias, out, beside)
        return out

    return multiply
