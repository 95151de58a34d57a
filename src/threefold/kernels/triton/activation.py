"""SiLU of the gate times the up projection. Contract: kernels/activation.py.

Memory-bound: a program takes a piece of one row, 16 bytes a thread and access.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

FEW_NUMBERS = 1 << 20
"""Results below this are cut finer, so that more multiprocessors have a part."""


@triton.jit
def _silu_mul(gate_up_ptr, out_ptr, WIDTH: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr):
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    columns = (tl.program_id(0) % PIECES) * PIECE + tl.arange(0, PIECE)
    is_there = columns < WIDTH
    source = gate_up_ptr + row * (2 * WIDTH) + columns
    gate = tl.load(source, mask=is_there, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=is_there, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * WIDTH + columns, result.to(out_ptr.dtype.element_ty), mask=is_there)


def silu_mul_body(width: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of gate_up [num_tokens, 2 * width], gate first, to [num_tokens, width]."""

    def multiply(gate_up: torch.Tensor) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        num_rows = gate_up.shape[0]
        out = gate_up.new_empty((num_rows, width))
        piece = 512 if num_rows * width < FEW_NUMBERS else 2048
        pieces = triton.cdiv(width, piece)
        if num_rows > 0:
            _silu_mul[(num_rows * pieces,)](
                gate_up,
                out,
                WIDTH=width,
                PIECES=pieces,
                PIECE=piece,
                num_warps=piece // 512,
            )
        return out

    return multiply
