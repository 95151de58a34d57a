"""Attention of rows with many new tokens: prompt chunks, whatever context lies before them.

A program takes some tokens of a row. Blocks before the diagonal need no mask. Bound by the tensor cores.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, N806, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl

from threefold.kernels.triton.attention_few import store_result, tile_queries
from threefold.kernels.triton.attention_tile import LOWEST, NO_WINDOW, first_seen, fold_context


@triton.jit
def attend_tile(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    key_scale_ptr,
    value_scale_ptr,
    tables_ptr,
    out_ptr,
    kv_head,
    row,
    first_token,
    num_tokens,
    context,
    table_width,
    score_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    STAGES: tl.constexpr,
):
    """num_tokens tokens of a row, the last of which sees `context` tokens, for one KV head."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    queries = tile_queries(qkv_ptr, first_token, num_tokens, kv_head, BLOCK_M, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
                           PADDED_DIM)  # fmt: skip
    first_position = context - num_tokens
    positions = first_position + tl.arange(0, BLOCK_M) // GROUP
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
            score_scale, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_N, WINDOW, STAGES, False,
        )  # fmt: skip
        begin = diagonal
    acc, peak, total = fold_context(
        acc, peak, total, queries, positions, keys_ptr, values_ptr, table_ptr, begin, context, context,
        score_scale, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_N, WINDOW, STAGES, True,
    )  # fmt: skip
    acc = acc * tl.load(value_scale_ptr)
    store_result(acc, total, out_ptr, kv_head, first_token, num_tokens, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM,
                 BLOCK_M)  # fmt: skip
