"""Steps without prompts: contexts split over programs, their shares merged by a second kernel, which begins early.

A split's length follows from its row's own context, on the card; how many splits there are, from shapes alone.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, N806, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from threefold.kernels.attention import StepBounds
from threefold.kernels.kv import KVCache
from threefold.kernels.triton.attention_few import attend_few, query_places, store_result
from threefold.kernels.triton.attention_tile import LOWEST, Served, first_seen
from threefold.kernels.triton.early import can_begin_early
from threefold.kernels.triton.tables import DecodeSizes

WORTHLESS_SPLITS = 2
"""What two splits of a context save is less than what merging them costs (`bench.kernels_chain`, 32 rows)."""
_MAX_SPLITS = 64
_WIDE_M = 128  # from here on a tile takes eight warps: its accumulator would fill the registers of four
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
    STAGES: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    IS_EARLY: tl.constexpr,
):
    """Program (KV head, row, split): rows of up to max_new new tokens; max_new * group <= BLOCK_M."""
    kv_head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_token = tl.load(row_starts_ptr + row)
    num_new = tl.load(row_starts_ptr + row + 1) - first_token
    context = tl.load(context_lens_ptr + row)
    if IS_EARLY and IS_SPLIT:
        gdc_launch_dependents()
    if num_new <= 0:
        return
    begin = first_seen(context - num_new, WINDOW, BLOCK_N)
    num_tokens = split_tokens(context, begin, num_splits, BLOCK_N)
    begin += split * num_tokens
    if begin >= context:
        return
    acc, peak, total = attend_few(
        qkv_ptr, keys_ptr, values_ptr, key_scale_ptr, value_scale_ptr, tables_ptr, kv_head, row, first_token, num_new,
        context, begin, tl.minimum(begin + num_tokens, context), table_width, score_scale, NUM_HEADS, NUM_KV_HEADS,
        HEAD_DIM, PADDED_DIM, BLOCK_SIZE, BLOCK_M, BLOCK_N, WINDOW, STAGES,
    )  # fmt: skip
    if not IS_SPLIT:
        store_result(acc, total, out_ptr, kv_head, first_token, num_new, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, PADDED_DIM,
                     BLOCK_M)  # fmt: skip
    else:
        GROUP: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
        places = tl.arange(0, BLOCK_M)
        channels = tl.arange(0, PADDED_DIM)
        is_query = places < num_new * GROUP
        is_there = is_query[:, None] & (channels < HEAD_DIM)[None, :]
        tokens, heads = query_places(0, kv_head, BLOCK_M, NUM_HEADS, NUM_KV_HEADS)
        share_rows = ((row * max_new + tokens) * NUM_HEADS + heads) * num_splits + split
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
    IS_EARLY: tl.constexpr,
):
    """Program (head, place of a new token in its row, row): the token's splits, weighted by their peaks, into out."""
    head, place, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_token = tl.load(row_starts_ptr + row)
    num_new = tl.load(row_starts_ptr + row + 1) - first_token
    context = tl.load(context_lens_ptr + row)
    if IS_EARLY:  # what is read above is older than the kernel ahead
        gdc_wait()
    if place >= num_new:
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


class DecodeRows:
    """A step of rows with few new tokens each, prepared for all layers.

    Args:
        served: what is the same in every step.
        rows: row starts, context lengths and block tables, on the card.
        num_rows: rows that may have new tokens.
        bounds: what is known of them.
        sizes: block sizes.
        max_splits: of a context, at most.
    """

    def __init__(
        self,
        served: Served,
        rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        num_rows: int,
        bounds: StepBounds,
        sizes: DecodeSizes,
        max_splits: int | None,
    ) -> None:
        self._served = served
        self._rows = rows
        self._num_rows = num_rows
        self._max_new = bounds.max_new
        self._sizes = sizes
        self._num_splits = self._splits(bounds, min(max_splits or _MAX_SPLITS, _MAX_SPLITS))
        heads, device = served.heads, rows[0].device
        self._is_early = can_begin_early(device)
        shape = (num_rows, bounds.max_new, heads.num_heads, self._num_splits) if self._num_splits > 1 else (0, 0, 0, 0)
        self._states = tuple(
            torch.empty(size, dtype=torch.float32, device=device) for size in ((*shape, heads.head_dim), shape, shape)
        )

    def _splits(self, bounds: StepBounds, most: int) -> int:
        """Enough for every multiprocessor; each split takes one block at least of the longest context there may be."""
        context = bounds.max_context
        if self._served.window:
            context = min(context, self._served.window + bounds.max_new)
        wanted = self._sizes.num_programs // (self._num_rows * self._served.heads.num_kv_heads)
        splits = max(1, min(wanted, int(triton.cdiv(context, self._sizes.block_n)), most))
        return 1 if splits <= WORTHLESS_SPLITS else splits

    def __call__(self, qkv: torch.Tensor, kv: KVCache, out: torch.Tensor) -> None:
        """Attend, into out."""
        served, sizes = self._served, self._sizes
        row_starts, context_lens, tables = self._rows
        block_m = served.few_m(self._max_new)
        attend_decode[(served.heads.num_kv_heads, self._num_rows, self._num_splits)](
            qkv,
            kv.keys,
            kv.values,
            kv.key_scale,
            kv.value_scale,
            *self._rows,
            out,
            *self._states,
            tables.shape[1],
            self._max_new,
            self._num_splits,
            served.score_scale,
            **served.constants(kv),
            BLOCK_M=block_m,
            BLOCK_N=sizes.block_n,
            STAGES=sizes.num_stages,
            IS_SPLIT=self._num_splits > 1,
            IS_EARLY=self._is_early,
            num_warps=sizes.num_warps if block_m < _WIDE_M else 2 * sizes.num_warps,
        )
        if self._num_splits == 1:
            return
        merge_splits[(served.heads.num_heads, self._max_new, self._num_rows)](
            row_starts,
            context_lens,
            out,
            *self._states,
            self._max_new,
            self._num_splits,
            NUM_HEADS=served.heads.num_heads,
            HEAD_DIM=served.heads.head_dim,
            PADDED_DIM=served.padded_dim,
            BLOCK_N=sizes.block_n,
            MAX_SPLITS=_MAX_SPLITS,
            WINDOW=served.window,
            IS_EARLY=self._is_early,
            num_warps=2,
            launch_pdl=self._is_early,
        )
