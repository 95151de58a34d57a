"""RMS norm of rows, with the residual added on the way. Contract: kernels/norm.py.

One program normalises a whole row in registers, or several rows where rows are many and narrow. Memory-bound: every
number is read once and written once.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

MANY_ROWS = 1024
"""From here on a program takes several narrow rows: there are programs enough for every multiprocessor."""
_TILE_NUMBERS = 4096
_MAX_WARPS = 16


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    num_rows,
    eps,
    WIDTH: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED_WIDTH)
    is_column = columns < WIDTH
    is_there = (rows < num_rows)[:, None] & is_column[None, :]
    offsets = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    weight = tl.load(weight_ptr + columns, mask=is_column, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + offsets, mask=is_there, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + offsets, mask=is_there, other=0.0)
        x = (residual.to(tl.float32) + x.to(tl.float32)).to(residual.dtype)
        tl.store(residual_ptr + offsets, x, mask=is_there)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, axis=1) / WIDTH + eps)
    normed = wide * inverse[:, None] * weight[None, :]
    tl.store(out_ptr + offsets, normed.to(out_ptr.dtype.element_ty), mask=is_there)


def rms_norm_body(weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]:
    """A function of (x [num_tokens, width], residual of the same shape or None), residual updated in place."""
    width = weight.shape[0]
    padded_width = triton.next_power_of_2(width)

    def normalise(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        num_rows = x.shape[0]
        if num_rows == 0:
            return out
        assert residual is None or residual.is_contiguous(), "the residual is updated in place, row after row"
        rows = max(1, _TILE_NUMBERS // padded_width) if num_rows >= MANY_ROWS else 1
        _rms_norm[(triton.cdiv(num_rows, rows),)](
            x,
            x if residual is None else residual,
            weight,
            out,
            num_rows,
            eps,
            WIDTH=width,
            HAS_RESIDUAL=residual is not None,
            ROWS=rows,
            PADDED_WIDTH=padded_width,
            num_warps=num_warps(rows * padded_width),
        )
        return out

    return normalise


def num_warps(tile_numbers: int) -> int:
    """Warps for a tile: about 16 numbers a thread, two 16-byte accesses of bf16."""
    num: int = triton.next_power_of_2(tile_numbers // (32 * 16))
    return max(1, min(_MAX_WARPS, num))
