"""What all attention bodies share: the heads they serve, and softmax over a row's context, block after block.

Online softmax (Milakov and Gimelshein 2018) in powers of two. A tile holds tokens times the query heads that share a
KV head, token after token, so that each key and value is read once for all of them.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from threefold.kernels.kv import KVCache
from threefold.kernels.rotary import Heads

LOWEST = tl.constexpr(-1.0e30)
"""Peak of no scores at all: finite, so that differences of two peaks are numbers."""
NO_WINDOW = tl.constexpr(0)
MIN_M = 16
"""Rows of the smallest product of the tensor cores."""


class Served(NamedTuple):
    """What launches of one attention have in common."""

    heads: Heads
    score_scale: float
    """On scores in powers of two."""
    window: int
    padded_dim: int

    def constants(self, kv: KVCache) -> dict[str, int]:
        """Constants of all bodies."""
        return {
            "NUM_HEADS": self.heads.num_heads,
            "NUM_KV_HEADS": self.heads.num_kv_heads,
            "HEAD_DIM": self.heads.head_dim,
            "PADDED_DIM": self.padded_dim,
            "BLOCK_SIZE": kv.block_size,
            "WINDOW": self.window,
        }

    def few_m(self, num_tokens: int) -> int:
        """Rows of a tile of so many tokens of a row."""
        return max(MIN_M, int(triton.next_power_of_2(num_tokens * self.heads.group)))


@triton.jit
def fold_context(
    acc,
    peak,
    total,
    queries,
    positions,
    keys_ptr,
    values_ptr,
    table_ptr,
    begin,
    end,
    context,
    score_scale,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
    STAGES: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Fold the context's tokens begin .. end into (acc, peak, total); keys_ptr, values_ptr stand at the KV head.

    Without IS_MASKED every query must see all of them. Tokens beyond the context may be read, never counted.
    """
    if keys_ptr.dtype.element_ty == tl.float8e4nv and queries.dtype == tl.bfloat16:
        queries = queries.to(tl.float16)  # to widen bytes to it takes one instruction, to bfloat16 many
    channels = tl.arange(0, PADDED_DIM)
    is_channel = (channels < HEAD_DIM)[None, :]
    # Block ids are read a step ahead: were they read where they are needed, the loads that follow them could not run
    # ahead of the products. Beyond the table's end lies no id; block 0 is there and finite.
    places = begin + tl.arange(0, BLOCK_N)
    blocks = tl.load(table_ptr + places // BLOCK_SIZE, mask=places < context, other=0)
    for _ in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        offsets = blocks.to(tl.int64) * (NUM_KV_HEADS * BLOCK_SIZE * HEAD_DIM) + (places % BLOCK_SIZE) * HEAD_DIM
        offsets = offsets[:, None] + channels[None, :]
        if HEAD_DIM == PADDED_DIM:
            keys = tl.load(keys_ptr + offsets)
            values = tl.load(values_ptr + offsets)
        else:
            keys = tl.load(keys_ptr + offsets, mask=is_channel, other=0.0)
            values = tl.load(values_ptr + offsets, mask=is_channel, other=0.0)
        next_places = places + BLOCK_N
        blocks = tl.load(table_ptr + next_places // BLOCK_SIZE, mask=next_places < context, other=0)
        scores = tl.dot(queries, tl.trans(keys.to(queries.dtype)), input_precision="ieee") * score_scale
        if IS_MASKED:
            is_seen = places[None, :] <= positions[:, None]
            if WINDOW != NO_WINDOW:
                is_seen = is_seen & (places[None, :] > positions[:, None] - WINDOW)
            scores = tl.where(is_seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        total = total * shrink + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(queries.dtype), values.to(queries.dtype), acc * shrink[:, None], input_precision="ieee")
        peak = new_peak
        places = next_places
    return acc, peak, total


@triton.jit
def first_seen(first_position, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Where to start reading for queries from first_position on, a multiple of BLOCK_N."""
    begin = first_position * 0
    if WINDOW != NO_WINDOW:
        begin = tl.maximum(first_position + 1 - WINDOW, 0) // BLOCK_N * BLOCK_N
    return begin
