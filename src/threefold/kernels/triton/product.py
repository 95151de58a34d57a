"""Products of a few tokens with a weight, read once at the speed of memory; with the gate of an MLP on the way out.

A program takes some outputs and all inputs, so a sum is made in one order, whatever else is in the batch. Programs are
small and many: what counts is how many bytes of the weight are under way. Contract: kernels/linear.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.triton.tables import ProductSizes

LEAST_TOKENS = 16
"""Rows of the smallest tile that the tensor cores take; fewer tokens cost as much."""


@triton.jit
def _weighted(x_ptr, weight_ptr, tokens, inputs, outputs, is_token, is_input, is_output, NUM_INPUTS: tl.constexpr,
              IS_EVEN: tl.constexpr):  # fmt: skip
    """A tile of the inputs, [BLOCK_M, BLOCK_K], and of the weight, [BLOCK_N, BLOCK_K]."""
    if IS_EVEN:
        x = tl.load(x_ptr + tokens[:, None] * NUM_INPUTS + inputs[None, :], mask=is_token[:, None], other=0.0)
        weight = tl.load(weight_ptr + outputs[:, None] * NUM_INPUTS + inputs[None, :], mask=is_output[:, None],
                         other=0.0, eviction_policy="evict_first")  # fmt: skip
    else:
        x = tl.load(x_ptr + tokens[:, None] * NUM_INPUTS + inputs[None, :], mask=is_token[:, None] & is_input[None, :],
                    other=0.0)  # fmt: skip
        weight = tl.load(weight_ptr + outputs[:, None] * NUM_INPUTS + inputs[None, :],
                         mask=is_output[:, None] & is_input[None, :], other=0.0,
                         eviction_policy="evict_first")  # fmt: skip
    return x, weight


@triton.jit
def _few_tokens(x_ptr, weight_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr,
                HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                BLOCK_K: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the NUM_OUTPUTS results of up to BLOCK_M tokens; gated, the weight has twice as many rows."""
    outputs = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    is_output = outputs < NUM_OUTPUTS
    tokens = tl.arange(0, BLOCK_M)
    is_token = tokens < num_tokens
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    is_even: tl.constexpr = NUM_INPUTS % BLOCK_K == 0
    for start in tl.range(0, NUM_INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_input = inputs < NUM_INPUTS
        x, weight = _weighted(x_ptr, weight_ptr, tokens, inputs, outputs, is_token, is_input, is_output, NUM_INPUTS,
                              is_even)  # fmt: skip
        acc = tl.dot(x, tl.trans(weight), acc, input_precision="ieee")
        if IS_GATED:
            x, weight = _weighted(x_ptr, weight_ptr, tokens, inputs, outputs + NUM_OUTPUTS, is_token, is_input,
                                  is_output, NUM_INPUTS, is_even)  # fmt: skip
            up = tl.dot(x, tl.trans(weight), up, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
        if IS_GATED:
            up += tl.load(bias_ptr + NUM_OUTPUTS + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    dtype = out_ptr.dtype.element_ty
    if IS_GATED:  # rounded in between, as the two ops by themselves would
        acc = acc.to(dtype).to(tl.float32)
        acc = acc / (1.0 + tl.exp(-acc)) * up.to(dtype).to(tl.float32)
    places = out_ptr + tokens[:, None] * NUM_OUTPUTS + outputs[None, :]
    tl.store(places, acc.to(dtype), mask=is_token[:, None] & is_output[None, :])


def few_tokens_body(
    weight: torch.Tensor, bias: torch.Tensor | None, sizes: ProductSizes, *, is_gated: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of x [num_tokens, in] for few tokens, to [num_tokens, out], or half as many where gated.

    Args:
        weight: [out, in].
        bias: [out] or None.
        sizes: how the work is cut.
        is_gated: the outputs are a gate and what it is multiplied with.
    """
    num_outputs = weight.shape[0] // 2 if is_gated else weight.shape[0]
    num_inputs = weight.shape[1]
    grid = (triton.cdiv(num_outputs, sizes.block_n),)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = x.new_empty((num_tokens, num_outputs))
        _few_tokens[grid](
            x,
            weight,
            weight if bias is None else bias,
            out,
            num_tokens,
            NUM_OUTPUTS=num_outputs,
            NUM_INPUTS=num_inputs,
            HAS_BIAS=bias is not None,
            IS_GATED=is_gated,
            BLOCK_M=max(LEAST_TOKENS, triton.next_power_of_2(num_tokens)),
            BLOCK_N=sizes.block_n,
            BLOCK_K=sizes.block_k,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
        )
        return out

    return multiply
