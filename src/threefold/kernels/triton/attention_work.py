"""What each program of a step with prompts does, listed once a step for all layers, on the card, which knows its rows.

A row of many new tokens comes to tiles of them. A row of few is one entry, or several that share its context where it
is long beside what each program would get if all contexts were shared out evenly. So what the host does not know costs
nothing: padded rows, and who is in a step with whom.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl

from threefold.kernels.triton.attention_tile import first_seen

FIELDS = tl.constexpr(16)
"""Of an entry, nine of them used: row, first token, tokens (0 = nothing to do), what the last of them sees; of a share
of a context also its begin and end, the row's first share, which of them this is, their number."""
_NUM_TOKENS = tl.constexpr(2)
_ROWS = tl.constexpr(32)
_PARTS = tl.constexpr(32)
_FILLED = tl.constexpr(512)


@triton.jit
def _read_rows(row_starts_ptr, context_lens_ptr, rows, num_rows):
    is_row = rows < num_rows
    first_token = tl.load(row_starts_ptr + rows, mask=is_row, other=0)
    num_new = tl.load(row_starts_ptr + rows + 1, mask=is_row, other=0) - first_token
    return first_token, num_new, tl.load(context_lens_ptr + rows, mask=is_row, other=0)


@triton.jit
def _read_few(num_new, context, max_few, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Where the context of rows of few tokens begins, and how many blocks of BLOCK_N tokens it has; 0 for others."""
    begin = first_seen(context - num_new, WINDOW, BLOCK_N)
    return begin, tl.where((num_new > 0) & (num_new <= max_few), tl.cdiv(context - begin, BLOCK_N), 0)


@triton.jit
def _write(entry_ptr, row, first_token, num_tokens, seen, is_there):
    tl.store(entry_ptr, row, mask=is_there)
    tl.store(entry_ptr + 1, first_token, mask=is_there)
    tl.store(entry_ptr + _NUM_TOKENS, num_tokens, mask=is_there)
    tl.store(entry_ptr + 3, seen, mask=is_there)


@triton.jit
def _fill(numbers_ptr, begin, end, STRIDE: tl.constexpr):
    for start in tl.range(begin, end, _FILLED):
        places = start + tl.arange(0, _FILLED)
        tl.store(numbers_ptr + places * STRIDE, 0, mask=places < end)


@triton.jit(
    do_not_specialize=["num_rows", "max_few", "max_tiles", "max_shares", "wanted_shares", "num_counters"],
    do_not_specialize_on_alignment=["row_starts_ptr", "context_lens_ptr"],
)
def list_attention_work(
    row_starts_ptr,
    context_lens_ptr,
    work_ptr,
    counters_ptr,
    num_rows,
    max_few,
    max_tiles,
    max_shares,
    wanted_shares,
    num_counters,
    TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One program: max_tiles entries for tiles of TILE tokens, max_shares behind them for rows of up to max_few."""
    num_blocks = 0
    for start in tl.range(0, num_rows, _ROWS):
        rows = start + tl.arange(0, _ROWS)
        first_token, num_new, context = _read_rows(row_starts_ptr, context_lens_ptr, rows, num_rows)
        begin, blocks = _read_few(num_new, context, max_few, BLOCK_N, WINDOW)
        num_blocks += tl.sum(blocks, axis=0)
    length = tl.maximum(tl.cdiv(num_blocks, tl.maximum(wanted_shares, 1)), 1)

    num_tiles = 0
    num_shares = 0
    num_split = 0
    for start in tl.range(0, num_rows, _ROWS):
        rows = start + tl.arange(0, _ROWS)
        first_token, num_new, context = _read_rows(row_starts_ptr, context_lens_ptr, rows, num_rows)
        begin, blocks = _read_few(num_new, context, max_few, BLOCK_N, WINDOW)
        tiles = tl.where(num_new > max_few, tl.cdiv(num_new, TILE), 0)
        ends = num_tiles + tl.cumsum(tiles, axis=0)
        for first_part in tl.range(0, tl.max(tiles, axis=0), _PARTS):
            part = first_part + tl.arange(0, _PARTS)[None, :]
            # A prompt's last tiles see most: they start first.
            entry_ptr = work_ptr + (ends[:, None] - 1 - part) * FIELDS
            is_there = part < tiles[:, None]
            num_tokens = tl.minimum(num_new[:, None] - part * TILE, TILE)
            seen = (context - num_new)[:, None] + part * TILE + num_tokens
            _write(entry_ptr, rows[:, None], first_token[:, None] + part * TILE, num_tokens, seen, is_there)
        num_tiles += tl.sum(tiles, axis=0)

        shares = tl.where(blocks >= 2 * length, tl.cdiv(blocks, length), tl.minimum(blocks, 1))
        own_length = tl.cdiv(blocks, tl.maximum(shares, 1)) * BLOCK_N
        first_entry = max_tiles + num_shares + tl.cumsum(shares, axis=0) - shares
        split = tl.where(shares > 1, shares, 0)
        first_share = num_split + tl.cumsum(split, axis=0) - split
        for first_part in tl.range(0, tl.max(shares, axis=0), _PARTS):
            part = first_part + tl.arange(0, _PARTS)[None, :]
            entry_ptr = work_ptr + (first_entry[:, None] + part) * FIELDS
            is_there = part < shares[:, None]
            own_begin = begin[:, None] + part * own_length[:, None]
            _write(entry_ptr, rows[:, None], first_token[:, None], num_new[:, None], context[:, None], is_there)
            tl.store(entry_ptr + 4, own_begin, mask=is_there)
            tl.store(entry_ptr + 5, tl.minimum(own_begin + own_length[:, None], context[:, None]), mask=is_there)
            tl.store(entry_ptr + 6, first_share[:, None], mask=is_there)
            tl.store(entry_ptr + 7, part, mask=is_there)
            tl.store(entry_ptr + 8, shares[:, None], mask=is_there)
        num_shares += tl.sum(shares, axis=0)
        num_split += tl.sum(split, axis=0)

    _fill(work_ptr + _NUM_TOKENS, num_tiles, max_tiles, FIELDS)
    _fill(work_ptr + _NUM_TOKENS, max_tiles + num_shares, max_tiles + max_shares, FIELDS)
    _fill(counters_ptr, 0, num_counters, 1)
