"""Products with packed 4-bit weights for many tokens: dequantised into a buffer that torch multiplies with.

A weight that is larger than the buffer may be is taken in pieces. Contract: kernels/int4.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from threefold.kernels.activation import silu_mul
from threefold.kernels.int4 import PackedInt4
from threefold.kernels.linear import Product
from threefold.kernels.triton.int4_tables import PIECE_BYTES
from threefold.kernels.triton.int4_values import scale_and_zero, spread

_BLOCK_OUTPUTS = 16
_ALIGN_OUTPUTS = 256
"""Outputs of a piece come in multiples of this, so that no tile of torch's product is cut."""


@triton.jit
def _dequantize(units_ptr, scale_zeros_ptr, out_ptr, first_output, num_outputs, NUM_ROWS: tl.constexpr,
                NUM_INPUTS: tl.constexpr, UNITS: tl.constexpr, GROUP: tl.constexpr,
                BLOCK_N: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N outputs of one chunk of inputs, to [num_outputs, NUM_INPUTS]."""
    dtype = out_ptr.dtype.element_ty
    index = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = places < num_outputs
    outputs = first_output + places
    units = tl.load(units_ptr + (index * NUM_ROWS + outputs)[:, None] * UNITS + tl.arange(0, UNITS)[None, :],
                    mask=is_output[:, None], other=0)  # fmt: skip
    for quarter in tl.static_range(4):
        inputs = (index * 4 + quarter) * UNITS + tl.arange(0, UNITS)
        group = (index * 4 + quarter) * UNITS // GROUP
        scale, zero = scale_and_zero(scale_zeros_ptr, group, outputs, is_output, NUM_ROWS, dtype)
        tl.store(out_ptr + places[:, None].to(tl.int64) * NUM_INPUTS + inputs[None, :],
                 (spread(units, quarter, dtype) - zero) * scale,
                 mask=is_output[:, None] & (inputs < NUM_INPUTS)[None, :])  # fmt: skip


def dequantize_piece(weight: PackedInt4, first_output: int, out: torch.Tensor) -> None:
    """As many outputs as `out` [outputs, in] has rows, from first_output on."""
    num_chunks, num_rows, num_units = weight.units.shape
    grid = (num_chunks, triton.cdiv(out.shape[0], _BLOCK_OUTPUTS))
    _dequantize[grid](
        weight.units,
        weight.scale_zeros,
        out,
        first_output,
        out.shape[0],
        NUM_ROWS=num_rows,
        NUM_INPUTS=weight.num_inputs,
        UNITS=num_units,
        GROUP=min(weight.group_size, num_chunks * num_units * 4),
        BLOCK_N=_BLOCK_OUTPUTS,
        num_warps=4,
    )


def dequantizing_body(
    weight: PackedInt4, bias: torch.Tensor | None, *, is_gated: bool, piece_bytes: int = PIECE_BYTES
) -> Product:
    """A function of x [num_tokens, in] for many tokens; its buffer lives as long as the call."""
    num_outputs, num_inputs = weight.num_outputs, weight.num_inputs
    fitting = piece_bytes // (num_inputs * weight.dtype.itemsize)
    piece = min(num_outputs, max(_ALIGN_OUTPUTS, fitting // _ALIGN_OUTPUTS * _ALIGN_OUTPUTS))
    gate = silu_mul(num_outputs // 2, weight.dtype, weight.units.device) if is_gated else None

    def multiply(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((x.shape[0], num_outputs))
        buffer = x.new_empty((piece, num_inputs))
        for start in range(0, num_outputs, piece):
            part = buffer[: min(piece, num_outputs - start)]
            dequantize_piece(weight, start, part)
            target = out[:, start : start + part.shape[0]]
            if bias is None:
                torch.mm(x, part.t(), out=target)
            else:
                torch.addmm(bias[start : start + part.shape[0]], x, part.t(), out=target)
        return out if gate is None else gate(out)

    return multiply
