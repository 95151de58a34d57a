"""Rows of an int8 table, widened on the way out, in one kernel in place of four. Contract: kernels/int8.py."""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from threefold.kernels.int8 import Int8Table, Lookup

_MOST_NUMBERS = 2048
"""Of a row, that a program takes."""


@triton.jit
def _look_up(ids_ptr, values_ptr, scales_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Program: BLOCK numbers of one row."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(ids_ptr + place)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = columns < WIDTH
    values = tl.load(values_ptr + row * WIDTH + columns, mask=is_there, other=0)
    wide = values.to(tl.float32) * tl.load(scales_ptr + row)
    tl.store(out_ptr + place * WIDTH + columns, wide.to(out_ptr.dtype.element_ty), mask=is_there)


def lookup_body(table: Int8Table, dtype: torch.dtype) -> Lookup:
    """A function of [n] int64 places to [n, width] in `dtype`."""
    width = table.values.shape[1]
    block = min(triton.next_power_of_2(width), _MOST_NUMBERS)

    def look_up(ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty((len(ids), width), dtype=dtype, device=ids.device)
        if len(ids) > 0:
            _look_up[len(ids), triton.cdiv(width, block)](ids.contiguous(), *table, out, WIDTH=width, BLOCK=block)
        return out

    return look_up
