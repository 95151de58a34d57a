"""The most likely token of each row of logits, in two short kernels: pieces of rows, then the pieces' winners.

NaN counts as the largest, so a row with one shows it; ties go to the lowest id. Memory-bound: each logit is read once.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

PIECE = 4096
"""Logits a program reads."""

_SMALL = ("keys_ptr", "ids_ptr", "tokens_ptr", "values_ptr")
"""Arrays of a few numbers a row, whose alignment changes with the number of rows: one compiled form serves all."""
_NOTED = (*_SMALL, "places_ptr", "noted_ptr", "packed_ptr")
_NAN_KEY = tl.constexpr(0x7FFFFFFF)
_LEAST_KEY = tl.constexpr(-0x80000000)


@triton.jit
def order_key(values):
    """float32 to int32, ordered as the values; zeros are one, NaN is above all."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(values != values, _NAN_KEY, key)  # noqa: PLR0124 (NaN alone)


@triton.jit(do_not_specialize_on_alignment=_SMALL)
def _piece_winners(logits_ptr, keys_ptr, ids_ptr, row_stride, VOCAB: tl.constexpr, PIECE: tl.constexpr):
    piece, row = tl.program_id(0), tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    is_there = ids < VOCAB
    values = tl.load(logits_ptr + row.to(tl.int64) * row_stride + ids, mask=is_there, other=0.0).to(tl.float32)
    keys = tl.where(is_there, order_key(values), _LEAST_KEY)
    best = tl.max(keys, axis=0)
    place = row * tl.num_programs(0) + piece
    tl.store(keys_ptr + place, best)
    tl.store(ids_ptr + place, tl.min(tl.where((keys == best) & is_there, ids, VOCAB), axis=0))


@triton.jit
def _winner(logits_ptr, keys_ptr, ids_ptr, row, row_stride, VOCAB, PIECES: tl.constexpr, PADDED_PIECES: tl.constexpr):
    """A row's token and its logit."""
    pieces = tl.arange(0, PADDED_PIECES)
    is_there = pieces < PIECES
    keys = tl.load(keys_ptr + row * PIECES + pieces, mask=is_there, other=_LEAST_KEY)
    ids = tl.load(ids_ptr + row * PIECES + pieces, mask=is_there, other=VOCAB)
    best = tl.max(keys, axis=0)
    token = tl.min(tl.where((keys == best) & is_there, ids, VOCAB - 1), axis=0)
    return token, tl.load(logits_ptr + row.to(tl.int64) * row_stride + token).to(tl.float32)


@triton.jit(do_not_specialize_on_alignment=_SMALL)
def _row_winner(
    logits_ptr, keys_ptr, ids_ptr, tokens_ptr, values_ptr, row_stride, VOCAB: tl.constexpr, PIECES: tl.constexpr,
    PADDED_PIECES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token, value = _winner(logits_ptr, keys_ptr, ids_ptr, row, row_stride, VOCAB, PIECES, PADDED_PIECES)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(values_ptr + row, value)


@triton.jit(do_not_specialize=("num_rows",), do_not_specialize_on_alignment=_NOTED)
def _note_row_winner(
    logits_ptr, keys_ptr, ids_ptr, tokens_ptr, values_ptr, places_ptr, noted_ptr, packed_ptr, row_stride, num_rows,
    VOCAB: tl.constexpr, PIECES: tl.constexpr, PADDED_PIECES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    token, value = _winner(logits_ptr, keys_ptr, ids_ptr, row, row_stride, VOCAB, PIECES, PADDED_PIECES)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(values_ptr + row, value)
    tl.store(noted_ptr + tl.load(places_ptr + row), token.to(tl.int64))
    tl.store(packed_ptr + row, token.to(tl.int32))
    tl.store(packed_ptr + num_rows + row, value.to(tl.int32, bitcast=True))


def most_likely_body(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[num_rows, vocab] of any floating type to ([num_rows] int64 tokens, [num_rows] float32 their logits)."""
    tokens, values = _room(logits)
    if len(tokens):
        keys, ids, constants = _winners_of_pieces(logits)
        _row_winner[(len(tokens),)](logits, keys, ids, tokens, values, logits.stride(0), **constants, num_warps=1)
    return tokens, values


def note_most_likely_body(
    logits: torch.Tensor, places: torch.Tensor, noted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, with each token noted at its place, and both packed."""
    tokens, values = _room(logits)
    num_rows = len(tokens)
    packed = torch.empty((2, num_rows), dtype=torch.int32, device=logits.device)
    if num_rows:
        keys, ids, constants = _winners_of_pieces(logits)
        made = (tokens, values, places, noted, packed)
        _note_row_winner[(num_rows,)](logits, keys, ids, *made, logits.stride(0), num_rows, **constants, num_warps=1)
    return tokens, values, packed


def _room(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    assert logits.stride(1) == 1, "a row's logits lie side by side"
    num_rows = len(logits)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    return tokens, torch.empty(num_rows, dtype=torch.float32, device=logits.device)


def _winners_of_pieces(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, int]]:
    """Keys and ids, each [num_rows, pieces], and what the second kernel is compiled for."""
    num_rows, vocab = logits.shape
    pieces = triton.cdiv(vocab, PIECE)
    keys, ids = torch.empty((2, num_rows, pieces), dtype=torch.int32, device=logits.device).unbind(0)
    _piece_winners[(pieces, num_rows)](logits, keys, ids, logits.stride(0), VOCAB=vocab, PIECE=PIECE, num_warps=4)
    return keys, ids, {"VOCAB": vocab, "PIECES": pieces, "PADDED_PIECES": triton.next_power_of_2(pieces)}
