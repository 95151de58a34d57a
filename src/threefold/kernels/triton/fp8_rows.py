"""Rows of activations rounded to FP8, each with its scale. Contract: `quantise_tokens_reference` in kernels/fp8.py.

Memory-bound: a program holds whole rows in registers, reads each number once and writes a byte for it. Alone, or on the
way out of the RMS norm and of the MLP's gate, whose own result is then never written.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.fp8 import E4M3, Fp8Inputs, Rounded
from threefold.kernels.triton.norm import MANY_ROWS, num_warps

MAX_E4M3 = tl.constexpr(448.0)
LEAST_SCALE = tl.constexpr(1e-12)
NO_BOUND = 3e38
_TILE_NUMBERS = 4096


@triton.jit
def _write_rounded(wide, fixed_ptr, values_ptr, scales_ptr, rows, is_row, offsets, is_there, bound,
                   HAS_FIXED: tl.constexpr):  # fmt: skip
    """Round a tile of whole rows, [ROWS, PADDED_WIDTH] float32."""
    if HAS_FIXED:
        scales = tl.load(fixed_ptr + rows * 0, mask=is_row, other=1.0)
    else:
        largest = tl.minimum(tl.max(tl.abs(wide), axis=1), bound)
        scales = tl.maximum(largest / MAX_E4M3, LEAST_SCALE)
    tl.store(scales_ptr + rows, scales, mask=is_row)
    values = tl.minimum(tl.maximum(wide / scales[:, None], -MAX_E4M3), MAX_E4M3)
    tl.store(values_ptr + offsets, values.to(values_ptr.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["num_rows"])
def _round_rows(x_ptr, fixed_ptr, values_ptr, scales_ptr, num_rows, bound, WIDTH: tl.constexpr,
                HAS_FIXED: tl.constexpr, IS_GATED: tl.constexpr, ROWS: tl.constexpr,
                PADDED_WIDTH: tl.constexpr):  # fmt: skip
    """Program: ROWS rows; gated, a row of x is a gate and what SiLU of it is multiplied with, both WIDTH wide."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, PADDED_WIDTH)
    is_row = rows < num_rows
    is_there = is_row[:, None] & (columns < WIDTH)[None, :]
    offsets = rows[:, None] * WIDTH + columns[None, :]
    if IS_GATED:
        source = x_ptr + rows[:, None] * (2 * WIDTH) + columns[None, :]
        gate = tl.load(source, mask=is_there, other=0.0).to(tl.float32)
        up = tl.load(source + WIDTH, mask=is_there, other=0.0).to(tl.float32)
        wide = (gate / (1.0 + tl.exp(-gate)) * up).to(x_ptr.dtype.element_ty).to(tl.float32)
    else:
        wide = tl.load(x_ptr + offsets, mask=is_there, other=0.0).to(tl.float32)
    _write_rounded(wide, fixed_ptr, values_ptr, scales_ptr, rows, is_row, offsets, is_there, bound, HAS_FIXED)


@triton.jit(do_not_specialize=["num_rows"])
def _norm_rounded(x_ptr, residual_ptr, weight_ptr, fixed_ptr, values_ptr, scales_ptr, num_rows, eps, bound,
                  WIDTH: tl.constexpr, HAS_RESIDUAL: tl.constexpr, HAS_FIXED: tl.constexpr, ROWS: tl.constexpr,
                  PADDED_WIDTH: tl.constexpr):  # fmt: skip
    """Program: the RMS norm of ROWS rows, as norm.py makes it."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, PADDED_WIDTH)
    is_row = rows < num_rows
    is_there = is_row[:, None] & (columns < WIDTH)[None, :]
    offsets = rows[:, None] * WIDTH + columns[None, :]
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + offsets, mask=is_there, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offsets, mask=is_there, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(residual.dtype)
        tl.store(residual_ptr + offsets, x, mask=is_there)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, axis=1) / WIDTH + eps)
    normed = (wide * inverse[:, None] * weight[None, :]).to(x.dtype).to(tl.float32)
    _write_rounded(normed, fixed_ptr, values_ptr, scales_ptr, rows, is_row, offsets, is_there, bound, HAS_FIXED)


def round_rows_body(inputs: Fp8Inputs, *, is_gated: bool = False) -> Callable[[torch.Tensor], Rounded]:
    """A function of x [num_tokens, width]; gated, of [num_tokens, 2 * width]: SiLU of the first half times the second
    is rounded.
    """
    fixed_scale, bound = inputs

    def run(x: torch.Tensor) -> Rounded:
        x = x.contiguous()
        num_rows, width = x.shape[0], x.shape[1] // 2 if is_gated else x.shape[1]
        values, scales = _empty(x, num_rows, width)
        if num_rows > 0:
            rows, padded = _tile(num_rows, width)
            _round_rows[(triton.cdiv(num_rows, rows),)](
                x,
                x if fixed_scale is None else fixed_scale,
                values,
                scales,
                num_rows,
                NO_BOUND if bound is None else bound,
                WIDTH=width,
                HAS_FIXED=fixed_scale is not None,
                IS_GATED=is_gated,
                ROWS=rows,
                PADDED_WIDTH=padded,
                num_warps=num_warps(rows * padded),
            )
        return Rounded(values, scales)

    return run


def norm_rounded_body(
    weight: torch.Tensor, eps: float, inputs: Fp8Inputs
) -> Callable[[torch.Tensor, torch.Tensor | None], Rounded]:
    """The RMS norm of norm.py, its result rounded; the residual is updated in place in its own type."""
    width = weight.shape[0]
    fixed_scale, bound = inputs

    def run(x: torch.Tensor, residual: torch.Tensor | None) -> Rounded:
        x = x.contiguous()
        num_rows = x.shape[0]
        assert residual is None or residual.is_contiguous(), "the residual is updated in place, row after row"
        values, scales = _empty(x, num_rows, width)
        if num_rows > 0:
            rows, padded = _tile(num_rows, width)
            _norm_rounded[(triton.cdiv(num_rows, rows),)](
                x,
                x if residual is None else residual,
                weight,
                x if fixed_scale is None else fixed_scale,
                values,
                scales,
                num_rows,
                eps,
                NO_BOUND if bound is None else bound,
                WIDTH=width,
                HAS_RESIDUAL=residual is not None,
                HAS_FIXED=fixed_scale is not None,
                ROWS=rows,
                PADDED_WIDTH=padded,
                num_warps=num_warps(rows * padded),
            )
        return Rounded(values, scales)

    return run


def _empty(x: torch.Tensor, num_rows: int, width: int) -> Rounded:
    values = torch.empty((num_rows, width), dtype=E4M3, device=x.device)
    return Rounded(values, torch.empty(num_rows, dtype=torch.float32, device=x.device))


def _tile(num_rows: int, width: int) -> tuple[int, int]:
    """Rows a program and their padded width: narrow rows are taken several at a time where there are many."""
    padded = triton.next_power_of_2(width)
    return (max(1, _TILE_NUMBERS // padded) if num_rows >= MANY_ROWS else 1), padded
