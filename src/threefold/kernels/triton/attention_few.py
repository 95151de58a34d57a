"""Attention of all new tokens of a row that has few of them, over a piece of its context.

One tile holds all of the tokens, so each key and value is read once, whether one token is asked for or six.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, N806, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl

from threefold.kernels.triton.attention_tile import LOWEST, fold_context


@triton.jit
def query_places(first_token, kv_head, BLOCK_M: tl.constexpr, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """(tokens, query heads) of a tile's rows."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    places = tl.arange(0, BLOCK_M)
    return (first_token + places // GROUP).to(tl.int64), kv_head * GROUP + places % GROUP


@triton.jit
def tile_queries(
    qkv_ptr,
    first_token,
    num_tokens,
    kv_head,
    BLOCK_M: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """[BLOCK_M, PADDED_DIM] of num_tokens tokens; zeros beyond them."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    tokens, heads = query_places(first_token, kv_head, BLOCK_M, NUM_HEADS, NUM_KV_HEADS)
    channels = tl.arange(0, PADDED_DIM)
    is_there = (tl.arange(0, BLOCK_M) < num_tokens * GROUP)[:, None] & (channels < HEAD_DIM)[None, :]
    query_rows = tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads
    return tl.load(qkv_ptr + query_rows[:, None] * HEAD_DIM + channels[None, :], mask=is_there, other=0.0)


@triton.jit
def attend_few(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    key_scale_ptr,
    value_scale_ptr,
    tables_ptr,
    kv_head,
    row,
    first_token,
    num_new,
    context,
    begin,
    end,
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
    """(sums of values, peaks of scores, sums of weights) over begin .. end; num_new * group <= BLOCK_M."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    queries = tile_queries(qkv_ptr, first_token, num_new, kv_head, BLOCK_M, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
                           PADDED_DIM)  # fmt: skip
    acc, peak, total = fold_context(
        tl.zeros([BLOCK_M, PADDED_DIM], dtype=tl.float32),
        tl.full([BLOCK_M], LOWEST, dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.float32),
        queries,
        context - num_new + tl.arange(0, BLOCK_M) // GROUP,
        keys_ptr + kv_head * (BLOCK_SIZE * HEAD_DIM),
        values_ptr + kv_head * (BLOCK_SIZE * HEAD_DIM),
        tables_ptr + row.to(tl.int64) * table_width,
        begin,
        end,
        context,
        score_scale * tl.load(key_scale_ptr),
        NUM_KV_HEADS,
        HEAD_DIM,
        PADDED_DIM,
        BLOCK_SIZE,
        BLOCK_N,
        WINDOW,
        STAGES,
        True,
    )
    return acc * tl.load(value_scale_ptr), peak, total


@triton.jit
def store_result(
    acc,
    total,
    out_ptr,
    kv_head,
    first_token,
    num_new,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """What the whole context came to, for num_new tokens."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    tokens, heads = query_places(first_token, kv_head, BLOCK_M, NUM_HEADS, NUM_KV_HEADS)
    channels = tl.arange(0, PADDED_DIM)
    is_there = (tl.arange(0, BLOCK_M) < num_new * GROUP)[:, None] & (channels < HEAD_DIM)[None, :]
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    to_out = out_ptr + (tokens * NUM_HEADS + heads)[:, None] * HEAD_DIM + channels[None, :]
    tl.store(to_out, result.to(out_ptr.dtype.element_ty), mask=is_there)
