"""Attention that reads the paged KV where it lies: no context is copied, whatever the shapes.

    a row's context   [ chunk 0: 128 tokens | chunk 1 | ... ]     a chunk = 8 groups of 16 tokens, each inside one block
    an item           some new tokens of a row × one KV head × all the chunks they see, or one of them

Flash attention's arithmetic (Dao et al. 2022): softmax and sum of values over a chunk, merged into the state of the
chunks before it. Chunks are cut by position and merged in order, so a token's result is the same number whichever rows
and tokens stand beside it, and whether its chunks ran as one item or as several. The query heads that share a KV head
make a *tile*; every KV group that is loaded serves the whole tile, and every chunk, by then in the nearest cache, all
tokens of the item. Meanwhile the next chunk is fetched.
"""

# ruff: noqa: PLR0917 (numba copies these functions in place; names of arguments would cost compile time)

from __future__ import annotations

from functools import cache

import numpy as np

from threefold.kernels.native import vector
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.packed_tile import INPUTS_BYTES, NOT_ROUNDED, TILE_TOKENS, round_inputs
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.tiles import (
    CHUNK_GROUPS,
    key_groups,
    largest_divisor,
    score_tile,
    value_tile,
)
from threefold.kernels.native.vector import inlined, peek_f32, peek_i32, peek_i64, poke_f32, poke_i64
from threefold.kernels.records import RECORD_INPUTS
from threefold.kernels.rows import CHUNK_TOKENS, Item

_ITEM_BYTES = 8 * len(Item._fields)
_ITEM_QUERIES = 48  # of one item at most, which bounds the state on its stack
_NUM_ARGS = 15
_NOTHING = -1e30  # the maximum over no tokens; finite, so that a difference of two is not NaN
_MAX_TILE = 8


def item_tokens(group: int) -> int:
    """Most new tokens of one item, when so many query heads share a KV head."""
    return max(1, _ITEM_QUERIES // group)


def state_bytes(num_queries: int, head_dim: int) -> int:
    """Bytes of the state of so many queries; one is float32 [sums of values | largest score, sum of weights]."""
    return num_queries * (head_dim + LANES) * WORD_BYTES


@inlined
def _clear(state: int, num_queries: int, head_dim: int) -> None:
    for query in range(num_queries):
        row = state + query * (head_dim + LANES) * WORD_BYTES
        for d in range(0, head_dim + LANES, LANES):
            vector.store(row + d * WORD_BYTES, vector.splat(np.float32(0.0)), WORD_BYTES)
        poke_f32(row + head_dim * WORD_BYTES, np.float32(_NOTHING))


@inlined
def _merge(row: int, sums: int, largest: float, total: float, head_dim: int) -> None:
    """Merge one query's result over some tokens into its state."""
    tail = row + head_dim * WORD_BYTES
    new_largest = max(peek_f32(tail), largest)
    keep = vector.exp2(vector.splat(peek_f32(tail) - new_largest))
    add = vector.exp2(vector.splat(largest - new_largest))
    for d in range(0, head_dim * WORD_BYTES, LANES_BYTES):
        merged = vector.load(row + d, WORD_BYTES) * keep + vector.load(sums + d, WORD_BYTES) * add
        vector.store(row + d, merged, WORD_BYTES)
    poke_f32(tail, new_largest)
    tail += WORD_BYTES
    poke_f32(tail, peek_f32(tail) * vector.first_lane(keep) + total * vector.first_lane(add))


@inlined
def _merge_states(state: int, other: int, num_queries: int, head_dim: int) -> None:
    for query in range(num_queries):
        start = query * (head_dim + LANES) * WORD_BYTES
        tail = other + start + head_dim * WORD_BYTES
        _merge(state + start, other + start, peek_f32(tail), peek_f32(tail + WORD_BYTES), head_dim)


@inlined
def _weigh(
    scores: int, weights: int, groups: tuple[int, int], tokens: tuple[int, int], scale: float, size: int, tail: int
) -> None:
    """One query's weights 2^(score - largest) over groups of a chunk; tokens outside `tokens` get none.

    Writes the largest score and the sum of the weights to `tail`.
    """
    top = vector.splat(np.float32(_NOTHING))
    for group in range(groups[0], groups[1]):
        score = vector.load(scores + group * LANES_BYTES, WORD_BYTES) * vector.splat(scale)
        score = vector.keep_lanes(score, tokens[0] - group * LANES, tokens[1] - group * LANES, np.float32(_NOTHING))
        vector.store(scores + group * LANES_BYTES, score, WORD_BYTES)
        top = vector.larger(top, score)
    largest = vector.lane_max(top)
    total = vector.splat(np.float32(0.0))
    for group in range(groups[0], groups[1]):
        weight = vector.exp2(vector.load(scores + group * LANES_BYTES, WORD_BYTES) - vector.splat(largest))
        vector.store(weights + group * LANES * size, weight, size)
        total = total + weight
    poke_f32(tail, largest)
    poke_f32(tail + WORD_BYTES, vector.lane_sum(total))


@inlined
def _finish(
    args: int, state: int, token: int, first_head: int, num_queries: int, head_dim: int, size: int, next_zero: int
) -> None:
    """Write the means of values of one token's queries, as they are or rounded."""
    out, out_bytes = peek_i64(args + 72), peek_i64(args + 80)
    for query in range(num_queries):
        row, place = state + query * (head_dim + LANES) * WORD_BYTES, (first_head + query) * head_dim
        share = vector.splat(np.float32(1.0) / peek_f32(row + (head_dim + 1) * WORD_BYTES))
        for d in range(0, head_dim, RECORD_INPUTS):
            low = vector.load(row + d * WORD_BYTES, WORD_BYTES) * share
            high = vector.load(row + d * WORD_BYTES + LANES_BYTES, WORD_BYTES) * share
            if next_zero == NOT_ROUNDED:
                numbers = out + token * out_bytes + (place + d) * size
                vector.store(numbers, low, size)
                vector.store(numbers + LANES * size, high, size)
            else:
                records = token // TILE_TOKENS * out_bytes + (place + d) // RECORD_INPUTS
                round_inputs(low, high, out + records * INPUTS_BYTES, token % TILE_TOKENS, next_zero)


@inlined
def _find_groups(args: int, item: int, head: int, chunk: int, group_bytes: int, keys: int, values: int) -> None:
    """Addresses of a chunk's KV groups; those behind the last token repeat the last group, which is safe to read."""
    num_kv_heads, block_groups = peek_i64(args + 96), peek_i64(args + 104)
    first = chunk * CHUNK_GROUPS
    num_groups = (peek_i64(item + 24) + peek_i64(item + 16) - 1) // LANES + 1 - first
    table = peek_i64(args + 48) + peek_i64(item) * peek_i64(args + 56) + first // block_groups * 4
    place = first % block_groups
    for g in range(CHUNK_GROUPS):
        group = (np.int64(peek_i32(table)) * num_kv_heads + head) * block_groups + place
        poke_i64(keys + 8 * g, peek_i64(args + 32) + group * group_bytes)
        poke_i64(values + 8 * g, peek_i64(args + 40) + group * group_bytes)
        if g + 1 < num_groups:
            place += 1
            if place == block_groups:
                place = 0
                table += 4


@inlined
def _part_state(args: int, part: int, head: int, num_bytes: int) -> int:
    """Where the state of one part and KV head lies."""
    place: int = peek_i64(args + 112) + (part * peek_i64(args + 96) + head) * num_bytes
    return place


@inlined
def _is_last_part(args: int, item: int, head: int) -> bool:
    """Whether all the other parts of this item's tokens are done; the counter is left at zero for the next call."""
    counter = peek_i64(args + 120) + (peek_i64(item + 56) * peek_i64(args + 96) + head) * 8
    if vector.take_next(counter) < peek_i64(item + 64) - 1:
        return False
    poke_i64(counter, 0)
    return True


@inlined
def _attend_token(
    queries: int,
    state: int,
    end: int,
    window: int,
    scale: float,
    scratch: tuple[int, ...],
    ahead: int,
    head_dim: int,
    tile: int,
    groups: int,
    size: int,
) -> None:
    """One tile of one token over the tokens [end - window, end) of a chunk.

    ahead: 0, or address of the addresses of the next chunk's KV groups, keys then values, which are fetched meanwhile.
    """
    scores, weights, sums, tails, keys, values = scratch
    start, end = max(end - window, 0), min(end, CHUNK_TOKENS)
    if end <= start:
        return
    first, stop = start // LANES, (end + LANES - 1) // LANES
    for g in range(first - first % groups, stop, groups):
        soon = ahead + 8 * g if ahead != 0 else 0
        score_tile(queries, keys + 8 * g, scores + g * LANES_BYTES, soon, tile, groups, head_dim, size)
    for t in range(tile):
        row = scores + t * CHUNK_TOKENS * WORD_BYTES
        _weigh(row, weights + t * CHUNK_TOKENS * size, (first, stop), (start, end), scale, size, tails + 8 * t)
    soon = ahead + 64 + 8 * first if ahead != 0 else 0
    value_tile(weights + first * LANES * size, values + 8 * first, stop - first, sums, soon, tile, head_dim, size)
    for t in range(tile):
        largest, total = peek_f32(tails + 8 * t), peek_f32(tails + 8 * t + WORD_BYTES)
        _merge(state + t * (head_dim + LANES) * WORD_BYTES, sums + t * head_dim * WORD_BYTES, largest, total, head_dim)


@cache
def attention_body(head_dim: int, group: int, size: int, next_zero: int = NOT_ROUNDED) -> Run:
    """run(num_items, queries, query_token_bytes, keys, values, tables, table_bytes, items, out, out_token_bytes, …).

    queries, out: `group` heads a KV head, one behind another, of head_dim numbers of `size` bytes; keys, values: see
    kernels/kv.py; tables: int32 block tables; items: int64 [n, fields of Item], each taken once for every KV head.
    Then: the float32 bits of scale · log2(e), KV heads, groups of 16 tokens a block, room for the states of all parts,
    int64 counters (one a part and KV head, zero before and after), the window in tokens. head_dim is a multiple of 32.
    Unless next_zero is NOT_ROUNDED, out are inputs rounded for weights with that zero, as packed_tile.py has them, and
    in the place of out_token_bytes stand their records of 32.
    """
    source = fingerprint()
    tile = largest_divisor(group, _MAX_TILE)
    groups = key_groups(tile)
    num_state_bytes = state_bytes(item_tokens(group) * group, head_dim)
    num_score_bytes, num_sum_bytes = tile * CHUNK_TOKENS * WORD_BYTES, tile * head_dim * WORD_BYTES
    row_bytes, head_bytes, group_bytes = state_bytes(1, head_dim), head_dim * size, LANES * head_dim * size

    def body(args: int) -> None:
        _ = source
        num_items, num_kv_heads, items = peek_i64(args + 8), peek_i64(args + 96), peek_i64(args + 64)
        scale, window, query_bytes = peek_f32(args + 88), peek_i64(args + 128), peek_i64(args + 24)
        own_state, sums = vector.stack_bytes(num_state_bytes), vector.stack_bytes(num_sum_bytes)
        scores, weights = vector.stack_bytes(num_score_bytes), vector.stack_bytes(num_score_bytes)
        tails, keys, values = vector.stack_bytes(64), vector.stack_bytes(64), vector.stack_bytes(64)
        soon = vector.stack_bytes(128)
        scratch = (scores, weights, sums, tails, keys, values)
        following = vector.take_next(args)  # one item ahead, whose first keys are fetched while this one is worked on
        while following < num_items:
            taken, following = following, vector.take_next(args)
            head, item = taken % num_kv_heads, items + taken // num_kv_heads * _ITEM_BYTES
            next_head, next_item = following % num_kv_heads, items + following // num_kv_heads * _ITEM_BYTES
            first_token, num_tokens, num_parts = peek_i64(item + 8), peek_i64(item + 16), peek_i64(item + 64)
            state = own_state
            if num_parts > 1:
                state = _part_state(args, peek_i64(item + 48), head, num_state_bytes)
            queries = peek_i64(args + 16) + first_token * query_bytes + head * group * head_bytes
            _clear(state, num_tokens * group, head_dim)
            for chunk in range(peek_i64(item + 32), peek_i64(item + 40)):
                _find_groups(args, item, head, chunk, group_bytes, keys, values)
                ahead = soon
                if chunk + 1 < peek_i64(item + 40):
                    _find_groups(args, item, head, chunk + 1, group_bytes, soon, soon + 64)
                elif following < num_items:
                    _find_groups(args, next_item, next_head, peek_i64(next_item + 32), group_bytes, soon, soon + 64)
                else:
                    ahead = 0
                for i in range(num_tokens):
                    end = peek_i64(item + 24) + i + 1 - chunk * CHUNK_TOKENS
                    for j in range(0, group, tile):
                        query, row = queries + i * query_bytes + j * head_bytes, state + (i * group + j) * row_bytes
                        _attend_token(query, row, end, window, scale, scratch, ahead, head_dim, tile, groups, size)
                        ahead = 0
            if num_parts > 1:
                if not _is_last_part(args, item, head):
                    continue
                state = own_state
                _clear(state, num_tokens * group, head_dim)
                for part in range(peek_i64(item + 56), peek_i64(item + 56) + num_parts):
                    other = _part_state(args, part, head, num_state_bytes)
                    _merge_states(state, other, num_tokens * group, head_dim)
            for i in range(num_tokens):
                mine = state + i * group * row_bytes
                _finish(args, mine, first_token + i, head * group, group, head_dim, size, next_zero)

    return Run(body, _NUM_ARGS)
