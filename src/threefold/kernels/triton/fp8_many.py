"""Products of FP8 with FP8 for many tokens whose weight has scales by block.

Bound by the tensor cores. A step of the loop takes the inputs of one block and its sum is scaled before it is added, so
blocks of 128 inputs cost little. Contract: kernels/fp8.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from threefold.kernels.triton.fp8_tables import ManySizes


@triton.jit(do_not_specialize=["num_tokens"])
def _many_tokens_fp8(x_ptr, x_scales_ptr, weight_ptr, scales_ptr, bias_ptr, out_ptr, num_tokens,
                     NUM_OUTPUTS: tl.constexpr, NUM_INPUTS: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr,
                     BLOCK_INPUTS: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
                     BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N results of BLOCK_M tokens, which have a scale for each of the weight's BLOCK_INPUTS."""
    num_n: tl.constexpr = (NUM_OUTPUTS + BLOCK_N - 1) // BLOCK_N
    num_m = tl.cdiv(num_tokens, BLOCK_M)
    program = tl.program_id(0)
    group = program // (GROUP_M * num_n)  # neighbours share rows of x and the weight in the card's cache
    first_m = group * GROUP_M
    height = tl.minimum(num_m - first_m, GROUP_M)
    within = program % (GROUP_M * num_n)
    tokens = (first_m + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = within // height * BLOCK_N + tl.arange(0, BLOCK_N)
    is_token, is_output = tokens < num_tokens, outputs < NUM_OUTPUTS
    blocks_wide: tl.constexpr = NUM_INPUTS // BLOCK_INPUTS
    is_even: tl.constexpr = NUM_INPUTS % BLOCK_K == 0
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    x_rows = x_ptr + tokens.to(tl.int64)[:, None] * NUM_INPUTS
    weight_rows = weight_ptr + outputs.to(tl.int64)[:, None] * NUM_INPUTS
    for start in tl.range(0, NUM_INPUTS, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_x, is_weight = is_token[:, None], is_output[:, None]
        if not is_even:
            is_x, is_weight = is_x & (inputs < NUM_INPUTS)[None, :], is_weight & (inputs < NUM_INPUTS)[None, :]
        x = tl.load(x_rows + inputs[None, :], mask=is_x, other=0.0)
        weight = tl.load(weight_rows + inputs[None, :], mask=is_weight, other=0.0)
        block = start // BLOCK_INPUTS
        x_scales = tl.load(x_scales_ptr + tokens * blocks_wide + block, mask=is_token, other=0.0)
        scales = tl.load(scales_ptr + outputs // BLOCK_OUTPUTS * blocks_wide + block, mask=is_output, other=0.0)
        acc += tl.dot(x, tl.trans(weight)) * (x_scales[:, None] * scales[None, :])
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    places = out_ptr + tokens.to(tl.int64)[:, None] * NUM_OUTPUTS + outputs[None, :]
    tl.store(places, acc.to(out_ptr.dtype.element_ty), mask=is_token[:, None] & is_output[None, :])


def many_tokens_fp8(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    values: torch.Tensor,
    scales: torch.Tensor,
    block_size: tuple[int, int],
    bias: torch.Tensor | None,
    sizes: ManySizes,
    dtype: torch.dtype,
) -> torch.Tensor:
    """[num_tokens, out] of `dtype`.

    Args:
        x: [num_tokens, in] e4m3.
        x_scales: [num_tokens, blocks of inputs].
        values: [out, in] e4m3.
        scales: by block.
        block_size: outputs and inputs a block, which divide the inputs; sizes.block_k divides a block's.
        bias: [out] or None.
        sizes: of the tiles.
        dtype: of the results.
    """
    num_tokens, (num_outputs, num_inputs) = x.shape[0], values.shape
    block_outputs, block_inputs = block_size
    out = torch.empty((num_tokens, num_outputs), dtype=dtype, device=x.device)
    if num_tokens == 0:
        return out
    grid = (triton.cdiv(num_tokens, sizes.block_m) * triton.cdiv(num_outputs, sizes.block_n),)
    _many_tokens_fp8[grid](
        x,
        x_scales,
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
        BLOCK_M=sizes.block_m,
        BLOCK_N=sizes.block_n,
        BLOCK_K=sizes.block_k,
        GROUP_M=sizes.group_m,
        num_warps=sizes.num_warps,
        num_stages=sizes.num_stages,
    )
    return out
