"""Attention of rows with few new tokens: contexts split over programs, their shares merged by a second kernel.

One tile holds all of a row's new tokens, so each key and value is read once, whether one token is asked for or six.
A split's length follows from its row's own context, on the card; how many splits there are, from shapes alone.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, N806, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl

from threefold.kernels.triton.attention_tile import LOWEST, first_seen, fold_context

_PASS = tl.constexpr(8)
"""Shares that a merging program reads at once."""


@triton.jit
def split_tokens(context, begin, num_splits, BLOCK_N: tl.constexpr):
    """Tokens of each split of begin .. context, a multiple of BLOCK_N."""
    return tl.cdiv(tl.cdiv(context - begin, BLOCK_N), num_splits) * BLOCK_N


@triton.jit(
    do_not_specialize=["table_width", "max_new", "num_splits"],
    do_not_specialize_on_alignment=["row_starts_ptr", "context_lens_ptr", "tables_ptr"],
)
def attend_decode(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    key_scale_ptr,
    value_scale_ptr,
    row_starts_ptr,
    context_lens_ptr,
    tables_ptr,
    out_ptr,
    shares_ptr,
    peaks_ptr,
    totals_ptr,
    table_width,
    max_new,
    num_splits,
    score_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Program (KV head, row, split): rows of 1 .. max_new new tokens; max_new * group <= BLOCK_M."""
    GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_token = tl.load(row_starts_ptr + row)
    num_new = tl.load(row_starts_ptr + row + 1) - first_token
    context = tl.load(context_lens_ptr + row)
    if (num_new <= 0) | (num_new > max_new):
        return
    first_position = context - num_new
    begin = first_seen(first_position, WINDOW, BLOCK_N)
    num_tokens = split_tokens(context, begin, num_splits, BLOCK_N)
    begin += split * num_tokens
    if begin >= context:
        return
    end = tl.minimum(begin + num_tokens, context)

    places = tl.arange(0, BLOCK_M)
    tokens = (first_token + places // GROUP).to(tl.int64)
    heads = kv_head * GROUP + places % GROUP
    channels = tl.arange(0, PADDED_DIM)
    is_query = places < num_new * GROUP
    is_there = is_query[:, None] & (channels < HEAD_DIM)[None, :]
    query_rows = tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + heads
    queries = tl.load(qkv_ptr + query_rows[:, None] * HEAD_DIM + channels[None, :], mask=is_there, other=0.0)
    acc, peak, total = fold_context(
        tl.zeros([BLOCK_M, PADDED_DIM], dtype=tl.float32),
        tl.full([BLOCK_M], LOWEST, dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.float32),
        queries,
        first_position + places // GROUP,
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
        True,
    )
    acc = acc * tl.load(value_scale_ptr)
    out_rows = tokens * NUM_HEADS + heads
    if not IS_SPLIT:
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        to_out = out_ptr + out_rows[:, None] * HEAD_DIM + channels[None, :]
        tl.store(to_out, result.to(out_ptr.dtype.element_ty), mask=is_there)
    else:
        share_rows = ((row * max_new + places // GROUP).to(tl.int64) * NUM_HEADS + heads) * num_splits + split
        tl.store(shares_ptr + share_rows[:, None] * HEAD_DIM + channels[None, :], acc, mask=is_there)
        tl.store(peaks_ptr + share_rows, peak, mask=is_query)
        tl.store(totals_ptr + share_rows, total, mask=is_query)


@triton.jit(
    do_not_specialize=["max_new", "num_splits"],
    do_not_specialize_on_alignment=["row_starts_ptr", "context_lens_ptr"],
)
def merge_splits(
    row_starts_ptr,
    context_lens_ptr,
    out_ptr,
    shares_ptr,
    peaks_ptr,
    totals_ptr,
    max_new,
    num_splits,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Program (head, place of a new token in its row, row): the token's splits, weighted by their peaks, into out."""
    head, place, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_token = tl.load(row_starts_ptr + row)
    num_new = tl.load(row_starts_ptr + row + 1) - first_token
    context = tl.load(context_lens_ptr + row)
    if (place >= num_new) | (num_new > max_new):
        return
    begin = first_seen(context - num_new, WINDOW, BLOCK_N)
    num_shares = tl.cdiv(context - begin, split_tokens(context, begin, num_splits, BLOCK_N))
    out_row = (first_token + place).to(tl.int64) * NUM_HEADS + head
    first_share = ((row * max_new + place).to(tl.int64) * NUM_HEADS + head) * num_splits
    splits = tl.arange(0, MAX_SPLITS)
    peak = tl.max(tl.load(peaks_ptr + first_share + splits, mask=splits < num_shares, other=LOWEST), axis=0)
    channels = tl.arange(0, PADDED_DIM)
    acc = tl.zeros([PADDED_DIM], dtype=tl.float32)
    total = 0.0
    for start in tl.range(0, num_shares, _PASS):
        shares = start + tl.arange(0, _PASS)
        is_share = shares < num_shares
        at = first_share + shares
        weights = tl.exp2(tl.load(peaks_ptr + at, mask=is_share, other=LOWEST) - peak)
        total += tl.sum(weights * tl.load(totals_ptr + at, mask=is_share, other=0.0), axis=0)
        is_there = is_share[:, None] & (channels < HEAD_DIM)[None, :]
        numbers = tl.load(shares_ptr + at[:, None] * HEAD_DIM + channels[None, :], mask=is_there, other=0.0)
        acc += tl.sum(numbers * weights[:, None], axis=0)
    result = acc / tl.where(total == 0.0, 1.0, total)
    to_out = out_ptr + out_row * HEAD_DIM + channels
    tl.store(to_out, result.to(out_ptr.dtype.element_ty), mask=channels < HEAD_DIM)
