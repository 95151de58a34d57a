"""Products with FP8 weights and activations as they are: weights are read as bytes and widened in registers.

For a few tokens, where what counts is how many bytes of the weight are under way, as in product.py; and for shapes that
the products of FP8 with FP8 do not take. A program sums all inputs in one order. Contract: kernels/fp8.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.triton.product import LEAST_TOKENS
from threefold.kernels.triton.tables import ProductSizes

MAX_TILE_TOKENS = 64
"""More tokens are divided among programs, each of which reads the weight again."""


@triton.jit
def _widened(weight_ptr, outputs, inputs, is_there, NUM_INPUTS: tl.constexpr, dtype: tl.constexpr):
    """A tile of the weight in another type: at once it would go through the card's slowest unit, number by number."""
    tile = tl.load(weight_ptr + outputs[:, None] * NUM_INPUTS + inputs[None, :], mask=is_there, other=0.0,
                   eviction_policy="evict_first")  # fmt: skip
    return tile.to(tl.float16).to(tl.float32).to(dtype)


@triton.jit
def _block_scales(scales_ptr, outputs, is_output, start, NUM_INPUTS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
                  BLOCK_INPUTS: tl.constexpr):  # fmt: skip
    """Scales of the outputs in the block of inputs that `start` is in; [1, BLOCK_N]."""
    blocks_wide: tl.constexpr = (NUM_INPUTS + BLOCK_INPUTS - 1) // BLOCK_INPUTS
    places = scales_ptr + outputs // BLOCK_OUTPUTS * blocks_wide + start // BLOCK_INPUTS
    return tl.load(places, mask=is_output, other=0.0)[None, :]


@triton.jit
def _finished(acc, scales_ptr, bias_ptr, outputs, is_output, BY_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr):
    if not BY_BLOCK:
        acc *= tl.load(scales_ptr + outputs, mask=is_output, other=0.0)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit(do_not_specialize=["num_tokens"])
def _few_tokens_fp8(x_ptr, weight_ptr, scales_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr,
                    NUM_INPUTS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, BLOCK_INPUTS: tl.constexpr,
                    HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                    BLOCK_K: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the NUM_OUTPUTS results of BLOCK_M tokens; gated, the weight has twice as many rows.

    BLOCK_INPUTS > 0: scales are by block, and BLOCK_K inputs lie in one block.
    """
    outputs = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < NUM_OUTPUTS
    tokens = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_token = tokens < num_tokens
    by_block: tl.constexpr = BLOCK_INPUTS > 0
    is_even: tl.constexpr = NUM_INPUTS % BLOCK_K == 0
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    rows = tokens.to(tl.int64)[:, None] * NUM_INPUTS
    for start in tl.range(0, NUM_INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_x, is_weight = is_token[:, None], is_output[:, None]
        if not is_even:
            is_x, is_weight = is_x & (inputs < NUM_INPUTS)[None, :], is_weight & (inputs < NUM_INPUTS)[None, :]
        x = tl.load(x_ptr + rows + inputs[None, :], mask=is_x, other=0.0)
        weight = _widened(weight_ptr, outputs, inputs, is_weight, NUM_INPUTS, x.dtype)
        if by_block:
            acc += tl.dot(x, tl.trans(weight), input_precision="ieee") * _block_scales(
                scales_ptr, outputs, is_output, start, NUM_INPUTS, BLOCK_OUTPUTS, BLOCK_INPUTS)  # fmt: skip
        else:
            acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
        if IS_GATED:
            weight = _widened(weight_ptr, outputs + NUM_OUTPUTS, inputs, is_weight, NUM_INPUTS, x.dtype)
            if by_block:
                up += tl.dot(x, tl.trans(weight), input_precision="ieee") * _block_scales(
                    scales_ptr, outputs + NUM_OUTPUTS, is_output, start, NUM_INPUTS, BLOCK_OUTPUTS,
                    BLOCK_INPUTS)  # fmt: skip
            else:
                up = tl.dot(x, tl.trans(weight), up, input_precision="ieee")
    acc = _finished(acc, scales_ptr, bias_ptr, outputs, is_output, by_block, HAS_BIAS)
    dtype = out_ptr.dtype.element_ty
    if IS_GATED:  # rounded in between, as the two ops by themselves would
        up = _finished(up, scales_ptr, bias_ptr, outputs + NUM_OUTPUTS, is_output, by_block, HAS_BIAS)
        acc = acc.to(dtype).to(tl.float32)
        acc = acc / (1.0 + tl.exp(-acc)) * up.to(dtype).to(tl.float32)
    places = out_ptr + tokens.to(tl.int64)[:, None] * NUM_OUTPUTS + outputs[None, :]
    tl.store(places, acc.to(dtype), mask=is_token[:, None] & is_output[None, :])


def few_tokens_fp8_body(
    values: torch.Tensor,
    scales: torch.Tensor,
    block_size: tuple[int, int] | None,
    bias: torch.Tensor | None,
    sizes: ProductSizes,
    *,
    is_gated: bool,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of x [num_tokens, in], fast for few tokens and right for any number, to [num_tokens, out].

    Args:
        values: [out, in] e4m3.
        scales: [out], or by block.
        block_size: outputs and inputs a block; sizes.block_k divides the inputs.
        bias: [out] or None.
        sizes: of the tiles.
        is_gated: half as many numbers come out.
    """
    num_outputs = values.shape[0] // 2 if is_gated else values.shape[0]
    num_inputs = values.shape[1]
    block_outputs, block_inputs = block_size or (1, 0)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = x.new_empty((num_tokens, num_outputs))
        if num_tokens == 0:
            return out
        block_m = min(MAX_TILE_TOKENS, max(LEAST_TOKENS, triton.next_power_of_2(num_tokens)))
        _few_tokens_fp8[triton.cdiv(num_outputs, sizes.block_n), triton.cdiv(num_tokens, block_m)](
            x,
            values,
            scales,
            values if bias is None else bias,
            out,
            num_tokens,
            NUM_OUTPUTS=num_outputs,
            NUM_INPUTS=num_inputs,
            BLOCK_OUTPUTS=block_outputs,
            BLOCK_INPUTS=block_inputs,
            HAS_BIAS=bias is not None,
            IS_GATED=is_gated,
            BLOCK_M=block_m,
            BLOCK_N=sizes.block_n,
            BLOCK_K=sizes.block_k,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
        )
        return out

    return multiply
