"""Around the passes of a draft model that feeds itself, in a kernel or two each. Contract: kernels/drafting.py.

A program takes a row: what it does is a handful of loads, and what counts is that it is one launch.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from threefold.kernels.drafting import ASKED, BY_COMPARISON, RoundInputs, RoundState
from threefold.kernels.triton.argmax import order_key

PIECE = 4096
"""Logits a program reads."""

_LEAST_KEY = tl.constexpr(-0x80000000)
_COMPARED = tl.constexpr(BY_COMPARISON)
_DRAFTS = tl.constexpr(len(ASKED))
_LENGTH, _LAST, _END, _FIRST, _NUM, _HELD = (
    tl.constexpr(ASKED.index(name)) for name in ("length", "last token", "end", "first", "drafts", "held")
)
_SIZES = ("num_rows", "max_rows", "width")
_SMALL = (
    "rows_ptr", "token_positions_ptr", "ends_ptr", "rounds_ptr", "tokens_ptr", "tables_ptr", "ids_ptr", "positions_ptr",
    "slots_ptr", "starts_ptr", "contexts_ptr", "own_tables_ptr", "asked_ptr", "drawn_ptr", "target_tokens_ptr",
)  # fmt: skip
"""Arrays of a few numbers a row, whose alignment changes with the number of rows: one compiled form serves all."""


@triton.jit
def _lay_out(
    place,
    row,
    position,
    end,
    all_rows_ptr,
    tables_ptr,
    positions_ptr,
    slots_ptr,
    starts_ptr,
    contexts_ptr,
    own_tables_ptr,
    num_rows,
    max_rows,
    width,
    NUM_NEW: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """All of a row's inputs but its tokens; `position` is that of the last one."""
    is_real = row < max_rows
    table_ptr = tables_ptr + tl.minimum(row, max_rows - 1) * width
    ahead = tl.arange(0, NUM_NEW)
    positions = tl.maximum(position + ahead - (NUM_NEW - 1), 0)  # below 0 in padding only
    blocks = tl.load(table_ptr + tl.minimum(positions // BLOCK_SIZE, width - 1)).to(tl.int64)
    slots = tl.where(is_real & (positions < end), blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)
    tl.store(positions_ptr + place * NUM_NEW + ahead, tl.where(is_real, positions, 0))
    tl.store(slots_ptr + place * NUM_NEW + ahead, slots)
    tl.store(contexts_ptr + place, tl.where(is_real, position + 1, 0).to(tl.int32))
    others = tl.arange(0, PADDED_ROWS)
    rows = tl.load(all_rows_ptr + others, mask=others < num_rows, other=max_rows)
    num_real = tl.sum((rows < max_rows).to(tl.int32), axis=0)
    tl.store(starts_ptr + place + 1, tl.minimum(place + 1, num_real) * NUM_NEW)
    if place == 0:
        tl.store(starts_ptr, 0)
    entries = tl.arange(0, PADDED_WIDTH)
    is_entry = entries < width
    tl.store(own_tables_ptr + place * width + entries, tl.load(table_ptr + entries, mask=is_entry), mask=is_entry)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_SMALL)
def _next_inputs(
    rows_ptr,
    token_positions_ptr,
    ends_ptr,
    tokens_ptr,
    tables_ptr,
    ids_ptr,
    positions_ptr,
    slots_ptr,
    starts_ptr,
    contexts_ptr,
    own_tables_ptr,
    num_rows,
    max_rows,
    width,
    BLOCK_SIZE: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    place = tl.program_id(0)
    row = tl.load(rows_ptr + place)
    position, end = tl.load(token_positions_ptr + place), tl.load(ends_ptr + place)
    tl.store(ids_ptr + place, tl.load(tokens_ptr + row))
    _lay_out(
        place, row, position, end, rows_ptr, tables_ptr, positions_ptr, slots_ptr, starts_ptr, contexts_ptr,
        own_tables_ptr, num_rows, max_rows, width, 1, BLOCK_SIZE, PADDED_ROWS, PADDED_WIDTH,
    )  # fmt: skip


@triton.jit(do_not_specialize=(*_SIZES, "num_drawn"), do_not_specialize_on_alignment=_SMALL)
def _judged_inputs(
    rows_ptr,
    token_positions_ptr,
    ends_ptr,
    rounds_ptr,
    asked_ptr,
    drawn_ptr,
    target_tokens_ptr,
    tables_ptr,
    ids_ptr,
    positions_ptr,
    slots_ptr,
    starts_ptr,
    contexts_ptr,
    own_tables_ptr,
    num_rows,
    max_rows,
    width,
    num_drawn,
    MAX_DRAFT: tl.constexpr,
    PADDED_DRAFT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    place = tl.program_id(0)
    own_ptr = asked_ptr + place  # fields lie num_rows apart
    row, end = tl.load(own_ptr), tl.load(own_ptr + _END * num_rows)
    first, num_drafts = tl.load(own_ptr + _FIRST * num_rows), tl.load(own_ptr + _NUM * num_rows)
    ahead = tl.arange(0, PADDED_DRAFT)
    is_draft = ahead < MAX_DRAFT
    drafts = tl.load(own_ptr + (_DRAFTS + ahead) * num_rows, mask=is_draft, other=0)
    on_device = tl.load(target_tokens_ptr - 1 - drafts, mask=is_draft & (drafts < 0), other=0)
    drafts = tl.where(drafts < 0, on_device, drafts)
    given = tl.load(drawn_ptr + tl.minimum(first + ahead, num_drawn - 1))
    does_hold = (given == drafts) & (ahead < num_drafts)
    num_held = tl.min(tl.where(does_hold, PADDED_DRAFT, ahead), axis=0).to(tl.int64)
    num_held = tl.minimum(num_held, num_drafts)
    decreed = tl.load(own_ptr + _HELD * num_rows)
    num_held = tl.where(decreed == _COMPARED, num_held, decreed)
    last = tl.load(drawn_ptr + first + num_held)
    before = tl.sum(tl.where(ahead == num_held - 1, drafts, 0), axis=0)
    before = tl.where(num_held > 0, before, tl.load(own_ptr + _LAST * num_rows))
    position = tl.load(own_ptr + _LENGTH * num_rows) + num_held
    tl.store(ids_ptr + 2 * place, before)
    tl.store(ids_ptr + 2 * place + 1, last)
    tl.store(rows_ptr + place, row)
    tl.store(token_positions_ptr + place, position)
    tl.store(ends_ptr + place, end)
    tl.store(rounds_ptr + place, tl.zeros_like(row))
    _lay_out(
        place, row, position, end, asked_ptr, tables_ptr, positions_ptr, slots_ptr, starts_ptr, contexts_ptr,
        own_tables_ptr, num_rows, max_rows, width, 2, BLOCK_SIZE, PADDED_ROWS, PADDED_WIDTH,
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=("keys_ptr", "ids_ptr", "peaks_ptr", "sums_ptr"))
def _weigh_pieces(
    logits_ptr, keys_ptr, ids_ptr, peaks_ptr, sums_ptr, row_stride, VOCAB: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """Program (piece, row): the piece's winner, and the sum of its exponentials relative to that."""
    piece, row = tl.program_id(0), tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    is_there = ids < VOCAB
    values = tl.load(logits_ptr + row.to(tl.int64) * row_stride + ids, mask=is_there, other=float("-inf"))
    keys = tl.where(is_there, order_key(values), _LEAST_KEY)
    best = tl.max(keys, axis=0)
    peak = tl.max(values, axis=0)
    place = row * tl.num_programs(0) + piece
    tl.store(keys_ptr + place, best)
    tl.store(ids_ptr + place, tl.min(tl.where((keys == best) & is_there, ids, VOCAB), axis=0))
    tl.store(peaks_ptr + place, peak)
    tl.store(sums_ptr + place, tl.sum(tl.exp(values - tl.where(peak == float("-inf"), 0.0, peak)), axis=0))


@triton.jit(
    do_not_specialize=["out_width"],
    do_not_specialize_on_alignment=[
        "keys_ptr", "ids_ptr", "peaks_ptr", "sums_ptr", "rows_ptr", "token_positions_ptr", "rounds_ptr", "tokens_ptr",
        "out_ptr",
    ],
)  # fmt: skip
def _note_choice(
    logits_ptr, keys_ptr, ids_ptr, peaks_ptr, sums_ptr, rows_ptr, token_positions_ptr, rounds_ptr, tokens_ptr, out_ptr,
    row_stride, out_width, VOCAB: tl.constexpr, PIECES: tl.constexpr, PADDED_PIECES: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    pieces = tl.arange(0, PADDED_PIECES)
    is_there = pieces < PIECES
    at = place * PIECES + pieces
    keys = tl.load(keys_ptr + at, mask=is_there, other=_LEAST_KEY)
    ids = tl.load(ids_ptr + at, mask=is_there, other=VOCAB)
    token = tl.min(tl.where((keys == tl.max(keys, axis=0)) & is_there, ids, VOCAB - 1), axis=0)
    largest = tl.load(logits_ptr + place.to(tl.int64) * row_stride + token)
    peaks = tl.load(peaks_ptr + at, mask=is_there, other=float("-inf"))
    total = tl.sum(tl.load(sums_ptr + at, mask=is_there, other=0.0) * tl.exp(peaks - largest), axis=0)
    turn = tl.load(rounds_ptr + place)
    to_out = out_ptr + turn * 2 * out_width + place
    tl.store(to_out, token)
    tl.store(to_out + out_width, (1.0 / total).to(tl.int32, bitcast=True))
    tl.store(tokens_ptr + tl.load(rows_ptr + place), token.to(tl.int64))
    tl.store(token_positions_ptr + place, tl.load(token_positions_ptr + place) + 1)
    tl.store(rounds_ptr + place, turn + 1)


def next_inputs_body(state: RoundState, tokens: torch.Tensor, tables: torch.Tensor, block_size: int) -> RoundInputs:
    """One token of each row."""
    made = _room(state, tables, 1)
    num_rows = len(state.rows)
    _next_inputs[(num_rows,)](
        state.rows,
        state.positions,
        state.ends,
        tokens,
        tables,
        *made,
        num_rows,
        *tables.shape,
        BLOCK_SIZE=block_size,
        PADDED_ROWS=triton.next_power_of_2(num_rows),
        PADDED_WIDTH=triton.next_power_of_2(tables.shape[1]),
    )
    return made


def judged_inputs_body(
    state: RoundState,
    asked: torch.Tensor,
    drawn: torch.Tensor,
    target_tokens: torch.Tensor,
    tables: torch.Tensor,
    block_size: int,
) -> RoundInputs:
    """Two tokens of each row."""
    assert asked.is_contiguous(), "fields lie side by side"
    made = _room(state, tables, 2)
    num_rows, max_draft = len(state.rows), len(asked) - len(ASKED)
    _judged_inputs[(num_rows,)](
        *state,
        asked,
        drawn,
        target_tokens,
        tables,
        *made,
        num_rows,
        *tables.shape,
        len(drawn),
        MAX_DRAFT=max_draft,
        PADDED_DRAFT=triton.next_power_of_2(max_draft),
        BLOCK_SIZE=block_size,
        PADDED_ROWS=triton.next_power_of_2(num_rows),
        PADDED_WIDTH=triton.next_power_of_2(tables.shape[1]),
    )
    return made


def _room(state: RoundState, tables: torch.Tensor, num_new: int) -> RoundInputs:
    num_rows, device = len(state.rows), tables.device
    token_ids, positions, slots = torch.empty((3, num_rows * num_new), dtype=torch.int64, device=device).unbind(0)
    return RoundInputs(
        token_ids,
        positions,
        slots,
        torch.empty(num_rows + 1, dtype=torch.int32, device=device),
        torch.empty(num_rows, dtype=torch.int32, device=device),
        torch.empty((num_rows, tables.shape[1]), dtype=torch.int32, device=device),
    )


def note_choices_body(logits: torch.Tensor, state: RoundState, tokens: torch.Tensor, out: torch.Tensor) -> None:
    """The most likely tokens, noted."""
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1 and out.stride(2) == 1, "a row's logits lie side by side, and a round's choices"
    pieces = triton.cdiv(vocab, PIECE)
    keys, ids = torch.empty((2, num_rows, pieces), dtype=torch.int32, device=logits.device).unbind(0)
    peaks, sums = torch.empty((2, num_rows, pieces), dtype=torch.float32, device=logits.device).unbind(0)
    shares = (keys, ids, peaks, sums)
    _weigh_pieces[(pieces, num_rows)](logits, *shares, logits.stride(0), VOCAB=vocab, PIECE=PIECE, num_warps=4)
    _note_choice[(num_rows,)](
        logits,
        *shares,
        state.rows,
        state.positions,
        state.rounds,
        tokens,
        out,
        logits.stride(0),
        out.stride(1),
        VOCAB=vocab,
        PIECES=pieces,
        PADDED_PIECES=triton.next_power_of_2(pieces),
        num_warps=1,
    )
