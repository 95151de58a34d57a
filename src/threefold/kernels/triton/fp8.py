"""Products of few tokens with FP8 weights and activations as they are: each warp of a program takes inputs of its own.

What counts is how many bytes of the weight are under way and how few steps wait for one another: a program's tile is
small and its warps divide the inputs, not the tile; their sums are added in the program, always in one order. Also for
shapes that the products of FP8 with FP8 do not take. Contract: kernels/fp8.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.triton.fp8_tables import FewSizes
from threefold.kernels.triton.int4_results import store_tile, tile_rows


@triton.jit
def widened(tile, dtype: tl.constexpr):
    """A tile of e4m3 or int8 in another type: at once it would go through the card's slowest unit, number by number."""
    if tile.dtype == tl.int8:
        # Added to the bits of 1.5 · 2^23, an integer is added to the number.
        wide = (tile.to(tl.int32) + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0
    else:
        wide = tile.to(tl.float16).to(tl.float32)
    return wide.to(dtype)


@triton.jit(do_not_specialize=["num_tokens"])
def few_rows_fp8(x_ptr, weight_ptr, scales_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr,
                 NUM_INPUTS: tl.constexpr, SCALE_ROWS: tl.constexpr, SCALE_INPUTS: tl.constexpr,
                 HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                 BLOCK_K: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the weight's rows times BLOCK_M tokens; gated, there are twice as many rows as NUM_OUTPUTS.

    SCALE_INPUTS > 0: scales are by block of SCALE_ROWS rows and so many inputs, which BLOCK_K divides.
    """
    dtype = x_ptr.dtype.element_ty
    is_even: tl.constexpr = NUM_INPUTS % (BLOCK_K * PARTS) == 0
    blocks_wide: tl.constexpr = (NUM_INPUTS + SCALE_INPUTS - 1) // SCALE_INPUTS if SCALE_INPUTS > 0 else 1
    rows, is_row = tile_rows(tl.program_id(1), NUM_OUTPUTS, IS_GATED, BLOCK_N)
    tokens = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_token = tokens < num_tokens
    weight_rows = weight_ptr + rows.to(tl.int64)[None, :, None] * NUM_INPUTS
    x_rows = x_ptr + tokens[None, None, :] * NUM_INPUTS
    acc = tl.zeros((PARTS, BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in tl.range(0, NUM_INPUTS, BLOCK_K * PARTS):
        firsts = start + tl.arange(0, PARTS) * BLOCK_K
        inputs = firsts[:, None] + tl.arange(0, BLOCK_K)[None, :]
        is_weight, is_x = is_row[None, :, None], is_token[None, None, :]
        if not is_even:
            is_weight &= (inputs < NUM_INPUTS)[:, None, :]
            is_x &= (inputs < NUM_INPUTS)[:, :, None]
        weight = tl.load(weight_rows + inputs[:, None, :], mask=is_weight, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_rows + inputs[:, :, None], mask=is_x, other=0.0)
        if SCALE_INPUTS > 0:
            blocks = (rows // SCALE_ROWS * blocks_wide)[None, :] + (firsts // SCALE_INPUTS)[:, None]
            scales = tl.load(scales_ptr + blocks, mask=is_row[None, :] & (firsts < NUM_INPUTS)[:, None], other=0.0)
            acc += tl.dot(widened(weight, dtype), x, input_precision="ieee") * scales[:, :, None]
        else:
            acc = tl.dot(widened(weight, dtype), x, acc, input_precision="ieee")
    total = tl.sum(acc, 0)
    if SCALE_INPUTS == 0:
        total *= tl.load(scales_ptr + rows, mask=is_row, other=0.0)[:, None]
    store_tile(total, tl.program_id(1), tokens, is_token, bias_ptr, out_ptr, num_tokens, 0, NUM_OUTPUTS, HAS_BIAS,
               IS_GATED, 1, BLOCK_M, BLOCK_N, dtype)  # fmt: skip


def few_tokens_fp8_body(
    values: torch.Tensor,
    scales: torch.Tensor,
    block_size: tuple[int, int] | None,
    bias: torch.Tensor | None,
    *,
    is_gated: bool,
) -> Callable[[torch.Tensor, FewSizes], torch.Tensor]:
    """A function of x [num_tokens, in] and how to cut it, right for any number of tokens, to [num_tokens, out].

    Args:
        values: [out, in] e4m3, or int8.
        scales: [out], or by block.
        block_size: outputs and inputs a block; sizes.block_inputs divides the inputs.
        bias: [out] or None.
        is_gated: half as many numbers come out.
    """
    num_rows, num_inputs = values.shape
    num_outputs = num_rows // 2 if is_gated else num_rows
    scale_rows, scale_inputs = block_size or (1, 0)

    def multiply(x: torch.Tensor, sizes: FewSizes) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = x.new_empty((num_tokens, num_outputs))
        # Tokens first, so that a weight's tile is read by all at once.
        grid = (triton.cdiv(num_tokens, sizes.block_tokens), triton.cdiv(num_rows, sizes.block_rows))
        if num_tokens > 0:
            few_rows_fp8[grid](
                x,
                values,
                scales,
                scales if bias is None else bias,
                out,
                num_tokens,
                NUM_OUTPUTS=num_outputs,
                NUM_INPUTS=num_inputs,
                SCALE_ROWS=scale_rows,
                SCALE_INPUTS=scale_inputs,
                HAS_BIAS=bias is not None,
                IS_GATED=is_gated,
                BLOCK_M=sizes.block_tokens,
                BLOCK_N=sizes.block_rows,
                BLOCK_K=sizes.block_inputs,
                PARTS=sizes.num_parts,
                num_warps=sizes.num_parts,
                num_stages=sizes.num_stages,
            )
        return out

    return multiply
