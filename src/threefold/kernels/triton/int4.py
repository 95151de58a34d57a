"""Products with packed 4-bit weights: dequantised in registers on their way from memory to the tensor cores.

A tile of outputs is the left operand, which the tensor cores take from registers; tokens are the right one. A value
costs two instructions in all: one of its own out of the unit, half a one each for zero and scale. Contract:
kernels/int4.py.
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
from threefold.kernels.triton.int4_tables import Int4Sizes
from threefold.kernels.triton.int4_values import scale_and_zero, spread
from threefold.kernels.triton.launch import bring_near, let_next_begin, wait_for_kernel_ahead

AHEAD_BYTES = 32 << 10
"""Of its weight, what a program that began early brings near while the kernel ahead still runs."""
_ADD_BLOCK = 1024


@triton.jit
def _tokens_tile(x_ptr, tokens, is_token, inputs, NUM_INPUTS: tl.constexpr, IS_EVEN: tl.constexpr):
    """[inputs, tokens] of x."""
    places = x_ptr + tokens[None, :] * NUM_INPUTS + inputs[:, None]
    if IS_EVEN:
        x = tl.load(places, mask=is_token[None, :], other=0.0)
    else:
        x = tl.load(places, mask=is_token[None, :] & (inputs < NUM_INPUTS)[:, None], other=0.0)
    return x


@triton.jit
def _bring_units_near(units_ptr, first, CHUNK_STEP: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr,
                      CHUNKS: tl.constexpr):  # fmt: skip
    """ROWS outputs of CHUNKS chunks, from the chunk `first` on."""
    bring_near(units_ptr + (first + tl.arange(0, CHUNKS)) * CHUNK_STEP, ROWS * UNITS * 2)


@triton.jit
def _finished(acc, up, bias_ptr, outputs, is_output, NUM_OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
              IS_GATED: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Sums to results: bias, gate, rounding."""
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)
        if IS_GATED:
            up += tl.load(bias_ptr + NUM_OUTPUTS + outputs, mask=is_output, other=0.0).to(tl.float32)
    if IS_GATED:
        acc = acc.to(dtype).to(tl.float32)  # rounded in between, as the two ops by themselves would
        acc = acc / (1.0 + tl.exp(-acc)) * up.to(dtype).to(tl.float32)
    return acc.to(dtype)


@triton.jit
def _tiled(x_ptr, units_ptr, scale_zeros_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr,
           NUM_INPUTS: tl.constexpr, NUM_CHUNKS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr,
           HAS_BIAS: tl.constexpr, IS_GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_U: tl.constexpr, EVICTION: tl.constexpr, OVERLAPS: tl.constexpr,
           AHEAD: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N of the NUM_OUTPUTS results of BLOCK_M tokens, or what a split of the inputs adds to them.

    Gated, the weight has twice as many rows. With splits, out_ptr is [SPLITS, num_tokens, rows] float32.
    """
    dtype = x_ptr.dtype.element_ty
    rows: tl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    chunk: tl.constexpr = 4 * UNITS
    is_even: tl.constexpr = NUM_INPUTS == NUM_CHUNKS * chunk
    pieces: tl.constexpr = UNITS // BLOCK_U
    share: tl.constexpr = (NUM_CHUNKS * pieces + SPLITS - 1) // SPLITS
    outputs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = outputs < NUM_OUTPUTS
    tokens = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_token = tokens < num_tokens
    places = outputs[:, None] * UNITS + tl.arange(0, BLOCK_U)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    first = tl.program_id(2) * share
    let_next_begin(OVERLAPS)
    if AHEAD > 0:
        own_ptr = units_ptr + tl.program_id(1) * BLOCK_N * UNITS
        _bring_units_near(own_ptr, first // pieces, rows * UNITS, BLOCK_N, UNITS, AHEAD)
        if IS_GATED:
            _bring_units_near(own_ptr + NUM_OUTPUTS * UNITS, first // pieces, rows * UNITS, BLOCK_N, UNITS, AHEAD)
    wait_for_kernel_ahead(OVERLAPS)
    for index in tl.range(first, tl.minimum(first + share, NUM_CHUNKS * pieces)):
        number, piece = index // pieces, index % pieces * BLOCK_U
        here = units_ptr + number * (rows * UNITS) + piece + places
        units = tl.load(here, mask=is_output[:, None], other=0, eviction_policy=EVICTION)
        weights = spread(units, dtype)
        if IS_GATED:
            units = tl.load(here + NUM_OUTPUTS * UNITS, mask=is_output[:, None], other=0, eviction_policy=EVICTION)
            up_weights = spread(units, dtype)
        for quarter in tl.static_range(4):
            if quarter * UNITS % GROUP == 0:
                group = (number * chunk + quarter * UNITS) // GROUP
                scale, zero = scale_and_zero(scale_zeros_ptr, group, outputs, is_output, rows, dtype)
                if IS_GATED:
                    up_scale, up_zero = scale_and_zero(scale_zeros_ptr + NUM_OUTPUTS, group, outputs, is_output, rows,
                                                       dtype)  # fmt: skip
            inputs = number * chunk + quarter * UNITS + piece + tl.arange(0, BLOCK_U)
            x = _tokens_tile(x_ptr, tokens, is_token, inputs, NUM_INPUTS, is_even)
            acc = tl.dot((weights[quarter] - zero) * scale, x, acc)
            if IS_GATED:
                up = tl.dot((up_weights[quarter] - up_zero) * up_scale, x, up)
    mask = is_output[:, None] & is_token[None, :]
    if SPLITS > 1:
        out_ptr += tl.program_id(2).to(tl.int64) * num_tokens * rows
        tl.store(out_ptr + tokens[None, :] * rows + outputs[:, None], acc, mask=mask)
        if IS_GATED:
            tl.store(out_ptr + tokens[None, :] * rows + NUM_OUTPUTS + outputs[:, None], up, mask=mask)
    else:
        acc = _finished(acc, up, bias_ptr, outputs[:, None], is_output[:, None], NUM_OUTPUTS, HAS_BIAS, IS_GATED, dtype)
        tl.store(out_ptr + tokens[None, :] * NUM_OUTPUTS + outputs[:, None], acc, mask=mask)


@triton.jit
def _add_splits(parts_ptr, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
                IS_GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
                OVERLAPS: tl.constexpr):  # fmt: skip
    """Program: BLOCK results of one token, from the sums of all splits."""
    rows: tl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    dtype = out_ptr.dtype.element_ty
    let_next_begin(OVERLAPS)
    wait_for_kernel_ahead(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_output = outputs < NUM_OUTPUTS
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    up = tl.zeros((BLOCK,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        part = parts_ptr + (split * num_tokens + token) * rows + outputs
        acc += tl.load(part, mask=is_output, other=0.0)
        if IS_GATED:
            up += tl.load(part + NUM_OUTPUTS, mask=is_output, other=0.0)
    acc = _finished(acc, up, bias_ptr, outputs, is_output, NUM_OUTPUTS, HAS_BIAS, IS_GATED, dtype)
    tl.store(out_ptr + token * NUM_OUTPUTS + outputs, acc, mask=is_output)


def tiled_body(
    weight: PackedInt4, bias: torch.Tensor | None, *, is_gated: bool, overlaps: bool = False
) -> Callable[[torch.Tensor, Int4Sizes], torch.Tensor]:
    """A function of x [num_tokens, in] and how to cut it, to [num_tokens, out], or half as many where gated.

    Where it `overlaps`, its kernels begin before those ahead of them have ended.
    """
    num_chunks, num_rows, num_units = weight.units.shape
    num_outputs = num_rows // 2 if is_gated else num_rows
    beside = {
        "NUM_OUTPUTS": num_outputs,
        "HAS_BIAS": bias is not None,
        "IS_GATED": is_gated,
        "OVERLAPS": overlaps,
        "launch_pdl": overlaps,
    }
    given_bias = weight.scale_zeros if bias is None else bias

    def multiply(x: torch.Tensor, sizes: Int4Sizes) -> torch.Tensor:
        x = x.contiguous()
        num_tokens, num_splits = x.shape[0], sizes.num_splits
        out = x.new_empty((num_tokens, num_outputs))
        parts = out if num_splits == 1 else x.new_empty((num_splits, num_tokens, num_rows), dtype=torch.float32)
        token_tiles = triton.cdiv(
            num_tokens, sizes.block_tokens
        )  # first, so that a weight's tile is read by all at once
        grid = (token_tiles, triton.cdiv(num_outputs, sizes.block_outputs), num_splits)
        _tiled[grid](
            x,
            weight.units,
            weight.scale_zeros,
            given_bias,
            parts,
            num_tokens,
            NUM_INPUTS=weight.num_inputs,
            NUM_CHUNKS=num_chunks,
            UNITS=num_units,
            GROUP=min(weight.group_size, num_chunks * num_units * 4),
            SPLITS=num_splits,
            BLOCK_M=sizes.block_tokens,
            BLOCK_N=sizes.block_outputs,
            BLOCK_U=min(sizes.block_units, num_units),
            EVICTION="evict_first" if token_tiles == 1 else "",
            AHEAD=_chunks_ahead(weight, sizes, num_outputs, is_gated=is_gated) if overlaps else 0,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
            **beside,
        )
        if num_splits > 1:
            add_grid = (num_tokens, triton.cdiv(num_outputs, _ADD_BLOCK))
            _add_splits[add_grid](
                parts, given_bias, out, num_tokens, SPLITS=num_splits, BLOCK=_ADD_BLOCK, num_warps=4, **beside
            )
        return out

    return multiply


def _chunks_ahead(weight: PackedInt4, sizes: Int4Sizes, num_outputs: int, *, is_gated: bool) -> int:
    """Chunks that a program brings near, a power of two; 0 = its part of them is not all there."""
    num_chunks, _, num_units = weight.units.shape
    if num_outputs % sizes.block_outputs:
        return 0
    tile_bytes = sizes.block_outputs * num_units * weight.units.itemsize * (1 + is_gated)
    fitting = min(AHEAD_BYTES // tile_bytes, num_chunks // sizes.num_splits)
    return 1 << (fitting.bit_length() - 1) if fitting else 0
