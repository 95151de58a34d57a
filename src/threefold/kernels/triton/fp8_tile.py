"""Products of FP8 with FP8 where all tokens fit into one tile, read once; with the gate of an MLP on the way out.

The weight is the tall operand of the tensor cores and tokens the narrow one, so few tokens leave no rows empty. Sums of
eight-bit numbers lose digits inside the tensor cores, so what a step of the loop found is added in float32. Contract:
kernels/fp8.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.fp8 import Fp8Weight, Rounded
from threefold.kernels.triton.fp8_tables import TileSizes
from threefold.kernels.triton.int4_results import add_splits, store_tile, tile_rows


@triton.jit(do_not_specialize=["num_tokens"])
def tile_fp8(x_ptr, x_scales_ptr, weight_ptr, scales_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr,
             NUM_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, SPLITS: tl.constexpr,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the weight's rows times BLOCK_M tokens, or what a split of the inputs adds to them.

    Gated, the weight has twice as many rows as there are NUM_OUTPUTS.
    """
    share: tl.constexpr = (NUM_INPUTS + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS) * BLOCK_K
    is_even: tl.constexpr = NUM_INPUTS == share * SPLITS
    rows, is_row = tile_rows(tl.program_id(1), NUM_OUTPUTS, IS_GATED, BLOCK_N)
    tokens = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_token = tokens < num_tokens
    x_rows = x_ptr + tokens[:, None] * NUM_INPUTS
    weight_rows = weight_ptr + rows.to(tl.int64)[:, None] * NUM_INPUTS
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    first = tl.program_id(2) * share
    for start in tl.range(first, first + share, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_x, is_weight = is_token[:, None], is_row[:, None]
        if not is_even:
            is_x, is_weight = is_x & (inputs < NUM_INPUTS)[None, :], is_weight & (inputs < NUM_INPUTS)[None, :]
        x = tl.load(x_rows + inputs[None, :], mask=is_x, other=0.0)
        weight = tl.load(weight_rows + inputs[None, :], mask=is_weight, other=0.0, eviction_policy="evict_first")
        acc = tl.dot(weight, tl.trans(x), acc, max_num_imprecise_acc=BLOCK_K)
    acc *= tl.load(scales_ptr + rows, mask=is_row, other=0.0)[:, None]
    acc *= tl.load(x_scales_ptr + tokens, mask=is_token, other=0.0)[None, :]
    store_tile(acc, tl.program_id(1), tokens, is_token, bias_ptr, out_ptr, num_tokens, tl.program_id(2), NUM_OUTPUTS,
               HAS_BIAS, IS_GATED, SPLITS, BLOCK_M, BLOCK_N, out_ptr.dtype.element_ty)  # fmt: skip


def tile_fp8_body(
    weight: Fp8Weight, bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
) -> Callable[[Rounded, TileSizes], torch.Tensor]:
    """A function of rounded tokens and how to cut the product, to [num_tokens, out], or half as many where gated.

    Args:
        weight: with a scale an output.
        bias: [out] or None.
        is_gated: the outputs are a gate and what it is multiplied with.
        dtype: of the results.
    """
    num_rows, num_inputs = weight.values.shape
    num_outputs = num_rows // 2 if is_gated else num_rows
    beside = {"NUM_OUTPUTS": num_outputs, "HAS_BIAS": bias is not None, "IS_GATED": is_gated}
    given_bias = weight.scales if bias is None else bias

    def multiply(x: Rounded, sizes: TileSizes) -> torch.Tensor:
        num_tokens, splits = len(x.values), sizes.num_splits
        out = torch.empty((num_tokens, num_outputs), dtype=dtype, device=x.values.device)
        parts = out if splits == 1 else out.new_empty((splits, num_tokens, num_rows), dtype=torch.float32)
        # Tokens first, so that a weight's tile is read by all at once.
        grid = (triton.cdiv(num_tokens, sizes.block_tokens), triton.cdiv(num_rows, sizes.block_rows), splits)
        tile_fp8[grid](
            x.values,
            x.scales,
            weight.values,
            weight.scales,
            given_bias,
            parts,
            num_tokens,
            NUM_INPUTS=num_inputs,
            SPLITS=splits,
            BLOCK_M=sizes.block_tokens,
            BLOCK_N=sizes.block_rows,
            BLOCK_K=sizes.block_inputs,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
            **beside,
        )
        if splits > 1:
            add_splits(parts, given_bias, out, beside)
        return out

    return multiply
