"""What the bodies of packed 4-bit weights do with their sums: bias, gate, rounding, and adding up what splits found.

A tile of a gated product has as many rows of the gate as of what it is multiplied with. Contract: kernels/int4.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_ADD_BLOCK, _ADD_BLOCK_OF_MANY, _ADD_WARPS = 256, 1024, 8
_MANY_TOKENS = 33


@triton.jit
def tile_rows(index, NUM_OUTPUTS: tl.constexpr, IS_GATED: tl.constexpr, BLOCK_N: tl.constexpr):
    """The weight's rows that the tile with this index has, and whether each is there."""
    if IS_GATED:
        half: tl.constexpr = BLOCK_N // 2
        place = tl.arange(0, BLOCK_N)
        outputs = index * half + place % half
        rows = outputs + place // half * NUM_OUTPUTS
    else:
        outputs = index * BLOCK_N + tl.arange(0, BLOCK_N)
        rows = outputs
    return rows, outputs < NUM_OUTPUTS


@triton.jit
def _gated(gate, up, dtype: tl.constexpr):
    gate = gate.to(dtype).to(tl.float32)  # rounded in between, as the two ops by themselves would
    return gate / (1.0 + tl.exp(-gate)) * up.to(dtype).to(tl.float32)


@triton.jit
def store_tile(acc, index, tokens, is_token, bias_ptr, out_ptr, num_tokens, split, NUM_OUTPUTS: tl.constexpr,
               HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
               BLOCK_N: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Sums [BLOCK_N, BLOCK_M] to results; with splits as they are, to [SPLITS, num_tokens, rows] float32."""
    rows, is_row = tile_rows(index, NUM_OUTPUTS, IS_GATED, BLOCK_N)
    if SPLITS > 1:
        num_rows: tl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
        out_ptr += split.to(tl.int64) * num_tokens * num_rows
        tl.store(out_ptr + tokens[None, :] * num_rows + rows[:, None], acc, mask=is_row[:, None] & is_token[None, :])
    else:
        if HAS_BIAS:
            acc += tl.load(bias_ptr + rows, mask=is_row, other=0.0).to(tl.float32)[:, None]
        if IS_GATED:
            half: tl.constexpr = BLOCK_N // 2
            gate, up = tl.reshape(acc, (2, half, BLOCK_M)).permute(1, 2, 0).split()
            acc = _gated(gate, up, dtype)
            outputs = index * half + tl.arange(0, half)
        else:
            outputs = rows
        mask = (outputs < NUM_OUTPUTS)[:, None] & is_token[None, :]
        tl.store(out_ptr + tokens[None, :] * NUM_OUTPUTS + outputs[:, None], acc.to(dtype), mask=mask)


@triton.jit(do_not_specialize_on_alignment=["num_tokens"], do_not_specialize=["first_output"])
def _add_splits(parts_ptr, bias_ptr, out_ptr, num_tokens, first_output, NUM_OUTPUTS: tl.constexpr,
                HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Program: BLOCK results of one token, from first_output on, from the sums of all splits."""
    num_split = NUM_OUTPUTS - first_output
    num_rows = num_split * 2 if IS_GATED else num_split
    dtype = out_ptr.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    outputs = first_output + places
    is_output = outputs < NUM_OUTPUTS
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    up = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        part = parts_ptr + (split * num_tokens + token) * num_rows + places
        acc += tl.load(part, mask=is_output, other=0.0)
        if IS_GATED:
            up += tl.load(part + num_split, mask=is_output, other=0.0)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
    if IS_GATED:
        if HAS_BIAS:
            up += tl.load(bias_ptr + NUM_OUTPUTS + outputs, mask=is_output, other=0.0).to(tl.float32)
        acc = _gated(acc, up, dtype)
    tl.store(out_ptr + token * NUM_OUTPUTS + outputs, acc.to(dtype), mask=is_output)


def add_splits(parts: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, beside: dict[str, Any]) -> None:
    """The last results of [num_tokens, out], from the sums of all splits [splits, num_tokens, rows].

    `beside`: what tiles had.
    """
    num_tokens, num_outputs = out.shape
    num_split = parts.shape[2] // 2 if beside["IS_GATED"] else parts.shape[2]
    block = _ADD_BLOCK if num_tokens < _MANY_TOKENS else _ADD_BLOCK_OF_MANY
    _add_splits[(num_tokens, triton.cdiv(num_split, block))](
        parts,
        bias,
        out,
        num_tokens,
        num_outputs - num_split,
        SPLITS=parts.shape[0],
        BLOCK=block,
        num_warps=_ADD_WARPS,
        **beside,
    )
