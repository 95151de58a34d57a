"""Attention of rows with many new tokens: prompt chunks, whatever context lies before them.

The grid is bounded by shapes alone: row r owns the programs from row_starts[r] // tile + r on, and those that find no
tokens end at once. Blocks before the diagonal need no mask. Bound by the tensor cores.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, N806, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl

from threefold.kernels.triton.attention_tile import LOWEST, NO_WINDOW, first_seen, fold_context


@triton.jit
def find_row(row_starts_ptr, num_rows, program, TILE: tl.constexpr):
    """The last row whose programs start at or before this one."""
    low = 0
    high = num_rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(row_starts_ptr + middle) // TILE + middle <= program:
            low = middle
        else:
            high = middle
    return low


@triton.jit(
    do_not_specialize=["num_rows", "table_width", "min_new"],
    do_not_specialize_on_alignment=["row_starts_ptr", "context_lens_ptr", "tables_ptr"],
)
def attend_prompt(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    key_scale_ptr,
    value_scale_ptr,
    row_starts_ptr,
    context_lens_ptr,
    tables_ptr,
    out_ptr,
    num_rows,
    table_width,
    min_new,
    score_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Program (KV head, tile): rows of at least min_new new tokens."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    TILE: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0)
    program = tl.num_programs(1) - 1 - tl.program_id(1)  # the last tiles of a prompt see most: they start first
    row = find_row(row_starts_ptr, num_rows, program, TILE)
    row_start = tl.load(row_starts_ptr + row)
    num_new = tl.load(row_starts_ptr + row + 1) - row_start
    context = tl.load(context_lens_ptr + row)
    first_new = (program - row_start // TILE - row) * TILE
    if (num_new < min_new) | (first_new >= num_new):
        return
    first_position = context - num_new + first_new
    end = tl.minimum(first_position + TILE, context)

    places = tl.arange(0, BLOCK_M)
    tokens = (row_start + first_new + places // GROUP).to(tl.int64)
    heads = kv_head * GROUP + places % GROUP
    channels = tl.arange(0, PADDED_DIM)
    is_query = (places < TILE * GROUP) & (first_new + places // GROUP < num_new)
    is_there = is_query[:, None] & (channels < HEAD_DIM)[None, :]
    query_rows = tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads
    queries = tl.load(qkv_ptr + query_rows[:, None] * HEAD_DIM + channels[None, :], mask=is_there, other=0.0)
    positions = first_position + places // GROUP
    keys_ptr += kv_head * (BLOCK_SIZE * HEAD_DIM)
    values_ptr += kv_head * (BLOCK_SIZE * HEAD_DIM)
    table_ptr = tables_ptr + row.to(tl.int64) * table_width
    score_scale = score_scale * tl.load(key_scale_ptr)
    acc = tl.zeros([BLOCK_M, PADDED_DIM], dtype=tl.float32)
    peak = tl.full([BLOCK_M], LOWEST, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    begin = first_seen(first_position, WINDOW, BLOCK_N)
    if WINDOW == NO_WINDOW:
        diagonal = (first_position + 1) // BLOCK_N * BLOCK_N
        acc, peak, total = fold_context(
            acc, peak, total, queries, positions, keys_ptr, values_ptr, table_ptr, begin, diagonal, context,
            score_scale, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_N, WINDOW, False,
        )  # fmt: skip
        begin = diagonal
    acc, peak, total = fold_context(
        acc, peak, total, queries, positions, keys_ptr, values_ptr, table_ptr, begin, end, context,
        score_scale, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_N, WINDOW, True,
    )  # fmt: skip
    result = acc * tl.load(value_scale_ptr) / tl.where(total == 0.0, 1.0, total)[:, None]
    to_out = out_ptr + (tokens * NUM_HEADS + heads)[:, None] * HEAD_DIM + channels[None, :]
    tl.store(to_out, result.to(out_ptr.dtype.element_ty), mask=is_there)
