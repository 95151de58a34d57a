"""A step's integers as the layers want them, in one kernel. Contract: kernels/staged.py.

The first programs copy a row's block table each, the others a piece of the integers.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

PIECE = 1024
"""Integers a program widens."""


@triton.jit(
    do_not_specialize=("num_staged", "num_ids", "num_rows", "width"),
    do_not_specialize_on_alignment=("staged_ptr", "rows_ptr", "tokens_ptr", "tables_ptr", "longs_ptr", "own_ptr"),
)
def _unpack_step(
    staged_ptr, rows_ptr, tokens_ptr, tables_ptr, longs_ptr, own_ptr, num_staged, num_ids, num_rows, width,
    PIECE: tl.constexpr, PADDED_WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < num_rows:
        row = tl.load(rows_ptr + program).to(tl.int64)
        entries = tl.arange(0, PADDED_WIDTH)
        is_entry = entries < width
        table = tl.load(tables_ptr + row * width + entries, mask=is_entry)
        tl.store(own_ptr + program.to(tl.int64) * width + entries, table, mask=is_entry)
    else:
        at = (program - num_rows) * PIECE + tl.arange(0, PIECE)
        is_there = at < num_staged
        values = tl.load(staged_ptr + at, mask=is_there, other=0).to(tl.int64)
        is_place = (values < 0) & (at < num_ids)
        known = tl.load(tokens_ptr - 1 - values, mask=is_place, other=0)
        tl.store(longs_ptr + at, tl.where(is_place, known, values), mask=is_there)


def unpack_step_body(
    staged: torch.Tensor, num_ids: int, row_ids: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Widen integers, put in tokens, gather tables."""
    assert tables.is_contiguous(), "tables lie side by side"
    num_staged, num_rows, width = len(staged), len(row_ids), tables.shape[1]
    longs = torch.empty(num_staged, dtype=torch.int64, device=staged.device)
    own_tables = torch.empty((num_rows, width), dtype=torch.int32, device=staged.device)
    _unpack_step[(num_rows + triton.cdiv(num_staged, PIECE),)](
        staged,
        row_ids,
        tokens,
        tables,
        longs,
        own_tables,
        num_staged,
        num_ids,
        num_rows,
        width,
        PIECE=PIECE,
        PADDED_WIDTH=triton.next_power_of_2(width),
    )
    return longs, own_tables
