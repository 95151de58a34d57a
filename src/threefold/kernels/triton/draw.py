"""Draws one token a row from logits on a card, without a sort and without a wait. Contract: sample/draw.py.

    _summarise   pieces of rows: largest logit, mass, and the largest of every 128 logits; reads each logit once
    _draw        a program a row: bound ─► candidates ─► top_k's floor ─► top_p's floor ─► inverse CDF in id order

What min_p and top_k (with neither, top_p) certainly do not need is left behind by a bound that the summary gives, most
of it without being read again; the rest, mostly a few hundred tokens, is copied side by side, in id order. Where it is
too much, the row itself is searched.
Floors are found on float bits, two at a time from the highest on: how many tokens, or how much mass, reach each of four
values. A row without filters is never read again but for the one piece that the draw falls into.

Floors are logits here and probabilities in the torch body: the same wherever those differ that these do. Sums are made
in one fixed order, so a draw is a function of its row alone, whatever else is in the batch.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import torch
import triton
import triton.language as tl

from threefold.kernels.triton.argmax import order_key

PIECE = 2048
"""Logits that are read at once."""
GROUP = 128
"""Logits of which the largest is kept: for top_k's bound, and to pass over groups that are below it."""
CAPACITY = 8192
"""Candidates that are kept side by side; 64 KiB a row."""
SEARCH = 1024
"""Tokens that are held against four floors at once."""

_SMALL = ("temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "uniforms_ptr", "peaks_ptr", "masses_ptr")
"""Arrays of a few numbers a row, whose alignment changes with the number of rows: one compiled form serves all."""
_LOWEST_KEY = tl.constexpr(-0x80000000)
_LOG2_E = tl.constexpr(1.4426950408889634)
_SHARPEST = tl.constexpr(1e30)
"""Stands for 1 / temperature where that is zero: all but the most likely weigh nothing."""
_BOUND_PASSES = tl.constexpr(10)  # 20 bits of top_k's bound; it may be too low, never too high
_ALL_PASSES = tl.constexpr(16)


@triton.jit
def _weights(values, largest, scale):
    return tl.exp2((values - largest) * scale)


@triton.jit
def _finite(value):
    """A stand-in for the largest of nothing but -inf, so that no difference is NaN."""
    return tl.where(value == float("-inf"), 0.0, value)


@triton.jit
def _scale(temperature):
    return tl.where(temperature > 0.0, _LOG2_E / tl.maximum(temperature, 1e-30), _SHARPEST)


@triton.jit(do_not_specialize_on_alignment=_SMALL)
def _summarise(
    logits_ptr,
    temperature_ptr,
    peaks_ptr,
    masses_ptr,
    group_peaks_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    PIECE: tl.constexpr,
    GROUP: tl.constexpr,
):
    piece, row = tl.program_id(0), tl.program_id(1)
    ids = piece * PIECE + tl.arange(0, PIECE)
    values = tl.load(logits_ptr + row.to(tl.int64) * row_stride + ids, mask=ids < VOCAB, other=float("-inf"))
    groups = tl.max(tl.reshape(values, (PIECE // GROUP, GROUP)), axis=1)
    peak = tl.max(groups, axis=0)
    weights = _weights(values, _finite(peak), _scale(tl.load(temperature_ptr + row)))
    place = row * tl.num_programs(0) + piece
    tl.store(peaks_ptr + place, peak)
    tl.store(masses_ptr + place, tl.sum(weights, axis=0))
    tl.store(group_peaks_ptr + place * (PIECE // GROUP) + tl.arange(0, PIECE // GROUP), groups)


@triton.jit
def _search(values_ptr, num, least_key, largest, scale, needed, BY_MASS: tl.constexpr, PASSES: tl.constexpr,
            SEARCH: tl.constexpr):  # fmt: skip
    """The highest key that `needed` tokens (or as much mass) reach, among the tokens that reach least_key."""
    steps = tl.arange(0, 4)
    found = tl.full((), _LOWEST_KEY, tl.int32)
    for index in range(PASSES):
        pivots = found + steps * (1 << (30 - 2 * index))
        totals = tl.zeros((SEARCH, 4), dtype=tl.float32 if BY_MASS else tl.int32)
        for start in range(0, num, SEARCH):
            places = start + tl.arange(0, SEARCH)
            values = tl.load(values_ptr + places, mask=places < num, other=float("-inf"))
            keys = order_key(values)
            is_in = (places < num) & (keys >= least_key)
            reaches = is_in[:, None] & (keys[:, None] >= pivots[None, :])
            if BY_MASS:
                totals += tl.where(reaches, _weights(values, largest, scale)[:, None], 0.0)
            else:
                totals += reaches.to(tl.int32)
        is_enough = tl.sum(totals.to(tl.float64), axis=0) >= needed
        num_enough = tl.maximum(tl.sum(is_enough.to(tl.int32), axis=0), 1)
        found += (num_enough - 1) * (1 << (30 - 2 * index))
    return found


@triton.jit
def _find_groups(peaks_ptr, hits_ptr, bound, GROUPS: tl.constexpr, SEARCH: tl.constexpr):
    """List the groups with a logit that reaches the bound; returns how many there are."""
    num = tl.full((), 0, tl.int32)
    for start in range(0, GROUPS, SEARCH):
        groups = start + tl.arange(0, SEARCH)
        peaks = tl.load(peaks_ptr + groups, mask=groups < GROUPS, other=float("-inf"))
        is_hit = ((groups < GROUPS) & (order_key(peaks) >= bound)).to(tl.int32)
        tl.store(hits_ptr + num + tl.cumsum(is_hit, axis=0) - 1, groups, mask=is_hit > 0)
        num += tl.sum(is_hit, axis=0)
    return num


@triton.jit
def _gather(row_ptr, hits_ptr, num_hits, out_ptr, ids_ptr, bound, VOCAB: tl.constexpr, PIECE: tl.constexpr,
            GROUP: tl.constexpr, CAPACITY: tl.constexpr):  # fmt: skip
    """Copy what reaches the bound side by side, as far as there is room; returns how much reaches it."""
    num = tl.full((), 0, tl.int32)
    for start in range(0, num_hits, PIECE // GROUP):
        hits = start + tl.arange(0, PIECE // GROUP)
        groups = tl.load(hits_ptr + hits, mask=hits < num_hits, other=VOCAB)  # a group that is not there
        ids = tl.reshape(groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (PIECE,))
        values = tl.load(row_ptr + ids, mask=ids < VOCAB, other=float("-inf"))
        is_in = ((ids < VOCAB) & (order_key(values) >= bound)).to(tl.int32)
        places = num + tl.cumsum(is_in, axis=0) - 1
        has_room = (is_in > 0) & (places < CAPACITY)
        tl.store(out_ptr + places, values, mask=has_room)
        tl.store(ids_ptr + places, ids, mask=has_room)
        num += tl.sum(is_in, axis=0)
    return num


@triton.jit
def _kept_weights(values_ptr, start, num, floor, largest, scale, PIECE: tl.constexpr):
    places = start + tl.arange(0, PIECE)
    values = tl.load(values_ptr + places, mask=places < num, other=float("-inf"))
    is_kept = (places < num) & (order_key(values) >= floor)
    return tl.where(is_kept, _weights(values, largest, scale), 0.0).to(tl.float64)


@triton.jit
def _mass(values_ptr, num, floor, largest, scale, PIECE: tl.constexpr):
    total = tl.full((), 0.0, tl.float64)
    for start in range(0, num, PIECE):
        total += tl.sum(_kept_weights(values_ptr, start, num, floor, largest, scale, PIECE), axis=0)
    return total


@triton.jit
def _place_in_piece(weights, start, before, target, PIECE: tl.constexpr):
    """The first place at which the mass exceeds the target; rounding may leave none, then the last that weighs."""
    places = start + tl.arange(0, PIECE)
    reached = before + tl.cumsum(weights, axis=0)
    last = tl.max(tl.where(weights > 0.0, places, 0), axis=0)
    return tl.minimum(tl.min(tl.where((reached > target) & (weights > 0.0), places, last), axis=0), last)


@triton.jit
def _draw_among(values_ptr, num, floor, largest, scale, uniform, PIECE: tl.constexpr):
    """Place of the drawn token among those that reach the floor."""
    target = uniform * _mass(values_ptr, num, floor, largest, scale, PIECE)
    reached = tl.full((), 0.0, tl.float64)
    before = reached
    chosen = tl.full((), 0, tl.int32)
    for start in range(0, num, PIECE):
        mass = tl.sum(_kept_weights(values_ptr, start, num, floor, largest, scale, PIECE), axis=0)
        is_next = (mass > 0.0) & (reached <= target)
        chosen = tl.where(is_next, start, chosen)
        before = tl.where(is_next, reached, before)
        reached += mass
    weights = _kept_weights(values_ptr, chosen, num, floor, largest, scale, PIECE)
    return _place_in_piece(weights, chosen, before, target, PIECE)


@triton.jit
def _draw_unfiltered(row_ptr, masses, uniform, largest, scale, VOCAB: tl.constexpr, PIECE: tl.constexpr):
    """The drawn token; masses are those of the row's pieces."""
    pieces = tl.arange(0, masses.shape[0])
    target = uniform * tl.sum(masses, axis=0)
    reached = tl.cumsum(masses, axis=0) - masses  # before each piece
    chosen = tl.max(tl.where((masses > 0.0) & (reached <= target), pieces, 0), axis=0)
    before = tl.sum(tl.where(pieces == chosen, reached, 0.0), axis=0)
    weights = _kept_weights(row_ptr, chosen * PIECE, VOCAB, _LOWEST_KEY, largest, scale, PIECE)
    return _place_in_piece(weights, chosen * PIECE, before, target, PIECE)


@triton.jit
def _lower_bound(
    floor, top_k, top_p, total, group_peaks_ptr, largest, scale, VOCAB: tl.constexpr, GROUPS: tl.constexpr,
    SEARCH: tl.constexpr,
):  # fmt: skip
    """A key below which nothing is kept, or nothing is needed to find what is kept."""
    bound = floor
    if top_k > 0:  # k groups hold a logit that large, so the k-th largest of all is no smaller
        by_k = _search(group_peaks_ptr, GROUPS, _LOWEST_KEY, largest, scale, top_k, False, _BOUND_PASSES, SEARCH)
        bound = tl.maximum(bound, by_k)
    elif (top_p < 1.0) & (floor <= _LOWEST_KEY):
        # Tokens below this have less than 1 - top_p together (half of it, for rounding). Where min_p narrows, top_p's
        # share is of what min_p keeps, and all of that has to be at hand.
        spared = 0.5 * (1.0 - top_p) * total.to(tl.float32) / VOCAB
        bound = tl.maximum(bound, order_key(largest + tl.log2(spared) / scale))
    return bound


@triton.jit
def _floor(values_ptr, num, floor, top_k, top_p, total, largest, scale, PIECE: tl.constexpr, SEARCH: tl.constexpr):
    """The least key that top_k, then top_p keep of what min_p keeps; total is the mass of all tokens."""
    is_narrowed = (top_k > 0) | (floor > _LOWEST_KEY)
    if top_k > 0:
        floor = tl.maximum(floor, _search(values_ptr, num, floor, largest, scale, top_k, False, _ALL_PASSES, SEARCH))
    if top_p < 1.0:
        mass = total
        if is_narrowed:
            mass = _mass(values_ptr, num, floor, largest, scale, PIECE)
        needed = top_p.to(tl.float64) * mass
        floor = tl.maximum(floor, _search(values_ptr, num, floor, largest, scale, needed, True, _ALL_PASSES, SEARCH))
    return floor


@triton.jit(do_not_specialize_on_alignment=_SMALL)
def _draw(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniforms_ptr,
    peaks_ptr,
    masses_ptr,
    group_peaks_ptr,
    hits_ptr,
    candidates_ptr,
    candidate_ids_ptr,
    tokens_ptr,
    row_stride,
    VOCAB: tl.constexpr,
    PIECES: tl.constexpr,
    PADDED_PIECES: tl.constexpr,
    PIECE: tl.constexpr,
    GROUP: tl.constexpr,
    CAPACITY: tl.constexpr,
    SEARCH: tl.constexpr,
):
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * row_stride
    temperature = tl.load(temperature_ptr + row)
    scale = _scale(temperature)
    is_greedy = temperature <= 0.0
    uniform = tl.where(is_greedy, 0.0, tl.load(uniforms_ptr + row))
    top_k = tl.where(is_greedy, 0, tl.load(top_k_ptr + row))
    top_k = tl.where(top_k < VOCAB, top_k, 0)
    top_p = tl.where(is_greedy, 1.0, tl.load(top_p_ptr + row))
    min_p = tl.where(is_greedy, 0.0, tl.load(min_p_ptr + row))

    pieces = tl.arange(0, PADDED_PIECES)
    peaks = tl.load(peaks_ptr + row * PIECES + pieces, mask=pieces < PIECES, other=float("-inf"))
    masses = tl.load(masses_ptr + row * PIECES + pieces, mask=pieces < PIECES, other=0.0).to(tl.float64)
    largest = _finite(tl.max(peaks, axis=0))
    masses = tl.where(peaks == float("-inf"), 0.0, masses * _weights(_finite(peaks), largest, scale).to(tl.float64))

    if (top_k <= 0) & (top_p >= 1.0) & (min_p <= 0.0):
        token = _draw_unfiltered(row_ptr, masses, uniform, largest, scale, VOCAB, PIECE)
    else:
        floor = tl.full((), _LOWEST_KEY, tl.int32)
        if min_p > 0.0:
            floor = order_key(largest + tl.log2(min_p) / scale)
        total = tl.sum(masses, axis=0)
        groups: tl.constexpr = PIECES * (PIECE // GROUP)
        peaks_of_groups = group_peaks_ptr + row * groups
        bound = _lower_bound(floor, top_k, top_p, total, peaks_of_groups, largest, scale, VOCAB, groups, SEARCH)

        kept_ptr = candidates_ptr + row.to(tl.int64) * CAPACITY
        kept_ids_ptr = candidate_ids_ptr + row.to(tl.int64) * CAPACITY
        hits_ptr = hits_ptr + row * groups
        num_hits = _find_groups(peaks_of_groups, hits_ptr, bound, groups, SEARCH)
        tl.debug_barrier()  # what one thread has written another reads
        num = _gather(row_ptr, hits_ptr, num_hits, kept_ptr, kept_ids_ptr, bound, VOCAB, PIECE, GROUP, CAPACITY)
        tl.debug_barrier()
        is_gathered = num <= CAPACITY
        source = kept_ptr if is_gathered else row_ptr
        num = num if is_gathered else VOCAB
        floor = _floor(source, num, floor, top_k, top_p, total, largest, scale, PIECE, SEARCH)
        token = _draw_among(source, num, floor, largest, scale, uniform, PIECE)
        if is_gathered:
            token = tl.load(kept_ids_ptr + token)
    tl.store(tokens_ptr + row, tl.minimum(tl.maximum(token, 0), VOCAB - 1).to(tl.int64))


def draw_body(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row.

    Args:
        logits: [num_rows, vocab] float32, as they come.
        temperature: [num_rows] float32; 0 = the most likely token.
        top_k: [num_rows] int32, 0 = all.
        top_p: [num_rows] float32, 1 = all.
        min_p: [num_rows] float32, 0 = all.
        uniforms: [num_rows] float64 in [0, 1).

    Returns:
        [num_rows] int64.
    """
    num_rows, vocab = logits.shape
    assert logits.stride(1) == 1, "a row's logits lie side by side"
    tokens = logits.new_empty(num_rows, dtype=torch.int64)
    if num_rows == 0:
        return tokens
    pieces = triton.cdiv(vocab, PIECE)
    peaks, masses = logits.new_empty((2, num_rows, pieces), dtype=torch.float32).unbind(0)
    group_peaks = logits.new_empty((num_rows, pieces * (PIECE // GROUP)), dtype=torch.float32)
    hits = torch.empty_like(group_peaks, dtype=torch.int32)
    candidates = logits.new_empty((num_rows, CAPACITY), dtype=torch.float32)
    candidate_ids = logits.new_empty((num_rows, CAPACITY), dtype=torch.int32)
    _summarise[(pieces, num_rows)](
        logits,
        temperature,
        peaks,
        masses,
        group_peaks,
        logits.stride(0),
        VOCAB=vocab,
        PIECE=PIECE,
        GROUP=GROUP,
        num_warps=4,
    )
    _draw[(num_rows,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        uniforms,
        peaks,
        masses,
        group_peaks,
        hits,
        candidates,
        candidate_ids,
        tokens,
        logits.stride(0),
        VOCAB=vocab,
        PIECES=pieces,
        PADDED_PIECES=triton.next_power_of_2(pieces),
        PIECE=PIECE,
        GROUP=GROUP,
        CAPACITY=CAPACITY,
        SEARCH=SEARCH,
        num_warps=8,
    )
    return tokens
