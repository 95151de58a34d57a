"""Steps with prompts: prompts and rows of few tokens in one launch, each by its own body.

So the programs that wait for memory and those that keep the tensor cores busy share the multiprocessors, and neither
waits for the other's last one. Shares of a context are merged in their order by whichever program ends last.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from threefold.kernels.attention import StepBounds
from threefold.kernels.kv import KVCache
from threefold.kernels.triton.attention_few import attend_few, store_result
from threefold.kernels.triton.attention_prompt import attend_tile
from threefold.kernels.triton.attention_tile import LOWEST, Served
from threefold.kernels.triton.attention_work import FIELDS, list_attention_work
from threefold.kernels.triton.tables import DecodeSizes, PromptSizes

_FEW_M = 16
"""Rows of a tile beside prompts: a token and a few drafts; which row has most is not known there."""
_MERGED_NUMBERS = 4096
"""Of shares that a program holds at once: more would take the registers of another program."""


@triton.jit(
    do_not_specialize=["table_width", "max_tiles", "share_width"], do_not_specialize_on_alignment=["tables_ptr"]
)
def attend_mixed(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    key_scale_ptr,
    value_scale_ptr,
    tables_ptr,
    work_ptr,
    out_ptr,
    shares_ptr,
    peaks_ptr,
    totals_ptr,
    counters_ptr,
    table_width,
    max_tiles,
    share_width,
    score_scale,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_STAGES: tl.constexpr,
    FEW_M: tl.constexpr,
    FEW_N: tl.constexpr,
    FEW_STAGES: tl.constexpr,
    MERGED: tl.constexpr,
):
    """Program (KV head, entry of work): the first max_tiles are tiles; FEW_M is 0 where there is nothing else."""
    kv_head, index = tl.program_id(0), tl.program_id(1)
    entry_ptr = work_ptr + index * FIELDS
    row = tl.load(entry_ptr)
    first_token = tl.load(entry_ptr + 1)
    num_tokens = tl.load(entry_ptr + 2)
    context = tl.load(entry_ptr + 3)
    begin = tl.load(entry_ptr + 4)
    end = tl.load(entry_ptr + 5)
    first_share = tl.load(entry_ptr + 6)
    share = tl.load(entry_ptr + 7)
    num_shares = tl.load(entry_ptr + 8)
    if num_tokens == 0:
        return
    if index < max_tiles:
        attend_tile(
            qkv_ptr, keys_ptr, values_ptr, key_scale_ptr, value_scale_ptr, tables_ptr, out_ptr, kv_head, row,
            first_token, num_tokens, context, table_width, score_scale, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM,
            BLOCK_SIZE, TILE_M, TILE_N, WINDOW, TILE_STAGES,
        )  # fmt: skip
    elif FEW_M > 0:
        acc, peak, total = attend_few(
            qkv_ptr, keys_ptr, values_ptr, key_scale_ptr, value_scale_ptr, tables_ptr, kv_head, row, first_token,
            num_tokens, context, begin, end, table_width, score_scale, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM,
            BLOCK_SIZE, FEW_M, FEW_N, WINDOW, FEW_STAGES,
        )  # fmt: skip
        is_whole = num_shares == 1
        if num_shares > 1:
            is_whole = _add_share(
                acc, peak, total, shares_ptr, peaks_ptr, totals_ptr, counters_ptr, kv_head, first_share, share,
                num_shares, share_width, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM, FEW_M,
            )  # fmt: skip
            if is_whole:
                acc, total = _merged(
                    shares_ptr, peaks_ptr, totals_ptr, kv_head, first_share, num_shares, share_width, NUM_KV_HEADS,
                    HEAD_DIM, PADDED_DIM, FEW_M, MERGED,
                )  # fmt: skip
        if is_whole:
            store_result(acc, total, out_ptr, kv_head, first_token, num_tokens, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
                         PADDED_DIM, FEW_M)  # fmt: skip


@triton.jit
def _add_share(acc, peak, total, shares_ptr, peaks_ptr, totals_ptr, counters_ptr, kv_head, first_share, share,
               num_shares, share_width, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
               BLOCK_M: tl.constexpr):  # fmt: skip
    """Put a share beside the others of its row; returns whether it is the last to come."""
    places = tl.arange(0, BLOCK_M)
    channels = tl.arange(0, PADDED_DIM)
    at = ((first_share + share) * NUM_KV_HEADS + kv_head) * share_width + places
    is_there = places < share_width
    tl.store(shares_ptr + at[:, None] * HEAD_DIM + channels[None, :], acc,
             mask=is_there[:, None] & (channels < HEAD_DIM)[None, :])  # fmt: skip
    tl.store(peaks_ptr + at, peak, mask=is_there)
    tl.store(totals_ptr + at, total, mask=is_there)
    tl.debug_barrier()  # every thread's numbers are written before one of them says so
    counter_ptr = counters_ptr + first_share * NUM_KV_HEADS + kv_head
    is_last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == num_shares - 1
    if is_last:
        tl.store(counter_ptr, 0)  # as the next layer wants it
    return is_last


@triton.jit
def _merged(shares_ptr, peaks_ptr, totals_ptr, kv_head, first_share, num_shares, share_width,
            NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
            MERGED: tl.constexpr):  # fmt: skip
    """A row's shares weighted by their peaks, MERGED of them at once: sums of values and of weights."""
    places = tl.arange(0, BLOCK_M)
    channels = tl.arange(0, PADDED_DIM)
    acc = tl.zeros([BLOCK_M, PADDED_DIM], dtype=tl.float32)
    peak = tl.full([BLOCK_M], LOWEST, dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start in tl.range(0, num_shares, MERGED):
        shares = start + tl.arange(0, MERGED)
        is_there = (shares < num_shares)[:, None] & (places < share_width)[None, :]
        at = ((first_share + shares) * NUM_KV_HEADS + kv_head)[:, None] * share_width + places[None, :]
        peaks = tl.load(peaks_ptr + at, mask=is_there, other=LOWEST)
        totals = tl.load(totals_ptr + at, mask=is_there, other=0.0)
        numbers = tl.load(
            shares_ptr + at[:, :, None] * HEAD_DIM + channels[None, None, :],
            mask=is_there[:, :, None] & (channels < HEAD_DIM)[None, None, :],
            other=0.0,
        )
        new_peak = tl.maximum(peak, tl.max(peaks, axis=0))
        weights = tl.exp2(peaks - new_peak[None, :])
        shrink = tl.exp2(peak - new_peak)
        acc = acc * shrink[:, None] + tl.sum(numbers * weights[:, :, None], axis=0)
        total = total * shrink + tl.sum(totals * weights, axis=0)
        peak = new_peak
    return acc, total


def most_tiles(num_tokens: int, num_rows: int, least_new: int, tile_tokens: int) -> int:
    """Most tiles that rows of at least least_new tokens each can come to.

    Rows as short as may be waste most of their tiles, or those of one token more than whole tiles hold, as few as may
    be: so many tiles a token there are at most.
    """
    whole = -(-(least_new - 1) // tile_tokens)
    most = max(
        num_tokens * -(-least_new // tile_tokens) // least_new,
        num_tokens * (whole + 1) // (whole * tile_tokens + 1),
    )
    return min(most, num_tokens // tile_tokens + num_rows)


class MixedRows:
    """A step that may have prompts, prepared for all layers.

    Args:
        served: what is the same in every step.
        rows: row starts, context lengths and block tables, on the card.
        num_rows: rows that may have new tokens.
        bounds: what is known of them.
        few: block sizes of rows of few tokens; None = no row counts as one.
        tile: block sizes of the others; their number of warps is that of all.
    """

    def __init__(
        self,
        served: Served,
        rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        num_rows: int,
        bounds: StepBounds,
        few: DecodeSizes | None,
        tile: PromptSizes,
    ) -> None:
        heads, device = served.heads, rows[0].device
        self._served = served
        self._tables = rows[2]
        self._few = few
        self._tile = tile._replace(block_m=max(tile.block_m, int(triton.next_power_of_2(heads.group))))
        max_few = max(1, _FEW_M // heads.group) if few is not None else 0
        tile_tokens = self._tile.block_m // heads.group
        wanted, block_n = (few.num_programs // heads.num_kv_heads, few.block_n) if few is not None else (0, 1)
        max_shares = num_rows + wanted if max_few else 0
        self._max_few = max_few
        self._max_tiles = most_tiles(bounds.num_tokens, num_rows, max_few + 1, tile_tokens)
        self._work = torch.empty((self._max_tiles + max_shares, FIELDS.value), dtype=torch.int32, device=device)
        states = (min(2 * wanted, max_shares), heads.num_kv_heads, max_few * heads.group)
        sizes = ((*states, heads.head_dim), states, states)
        self._states = tuple(torch.empty(size, dtype=torch.float32, device=device) for size in sizes)
        self._counters = torch.empty(states[:2], dtype=torch.int32, device=device)
        list_attention_work[(1,)](
            *rows[:2],
            self._work,
            self._counters,
            num_rows,
            max_few,
            self._max_tiles,
            max_shares,
            wanted,
            self._counters.numel(),
            TILE=tile_tokens,
            BLOCK_N=block_n,
            WINDOW=served.window,
            num_warps=4,
        )

    def __call__(self, qkv: torch.Tensor, kv: KVCache, out: torch.Tensor) -> None:
        """Attend, into out."""
        served, few, tile = self._served, self._few, self._tile
        few_m = served.few_m(self._max_few) if few is not None else 0
        attend_mixed[(served.heads.num_kv_heads, len(self._work))](
            qkv,
            kv.keys,
            kv.values,
            kv.key_scale,
            kv.value_scale,
            self._tables,
            self._work,
            out,
            *self._states,
            self._counters,
            self._tables.shape[1],
            self._max_tiles,
            self._max_few * served.heads.group,
            served.score_scale,
            **served.constants(kv),
            TILE_M=tile.block_m,
            TILE_N=tile.block_n,
            TILE_STAGES=tile.num_stages,
            FEW_M=few_m,
            FEW_N=few.block_n if few is not None else 0,
            FEW_STAGES=few.num_stages if few is not None else 0,
            MERGED=max(1, _MERGED_NUMBERS // (few_m * served.padded_dim)) if few is not None else 0,
            num_warps=tile.num_warps,
        )
