"""The two products of attention on a tile of query heads, as LLVM with all sums in registers.

Knows nothing about rows, blocks or softmax. Both are sums of outer products, `totals[t][g] += word t · 16 words of g`,
and differ in where the words lie. Written as LLVM because numba cannot be told to keep an array in registers.
"""

# ruff: noqa: PLR0917 (instructions of compiled bodies, whose constants come last)

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from threefold.kernels.native import llvm
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.vector import define, instruction
from threefold.kernels.rows import CHUNK_TOKENS

CHUNK_GROUPS = CHUNK_TOKENS // LANES

_ADDRESS_BYTES = 8
_MAX_TOTALS = 16 if llvm.has_feature("avx512f") else 6  # half the registers; the rest is for what is being multiplied
_UNROLL = 8


def largest_divisor(number: int, limit: int) -> int:
    """Largest divisor of number that is at most limit."""
    return max(divisor for divisor in range(1, limit + 1) if number % divisor == 0)


def key_groups(tile: int) -> int:
    """Groups of 16 keys that one score_tile of so many queries takes on: a power of two."""
    return min(CHUNK_GROUPS, 1 << (max(1, _MAX_TOTALS // tile).bit_length() - 1))


def new_totals(builder: Any, count: int) -> list[Any]:
    """Sums, set to zero; LLVM turns these stack places into registers."""
    totals = [cgutils.alloca_once(builder, llvm.VF32) for _ in range(count)]
    for total in totals:
        builder.store(llvm.floats(0.0), total)
    return totals


def add_products(builder: Any, totals: list[Any], scalars: list[Any], vectors: list[Any], size: int) -> None:
    """totals[t][g] += word at scalars[t] · 16 words at vectors[g]."""
    rows = [llvm.load(builder, address, llvm.VI32, LANES_BYTES) for address in vectors]
    for t, address in enumerate(scalars):
        word = llvm.splat(builder, llvm.load(builder, address, llvm.I32, size))
        for g, row in enumerate(rows):
            total = totals[t * len(rows) + g]
            builder.store(llvm.dot(builder, builder.load(total), row, word, size), total)


def prefetch(builder: Any, address: Any) -> None:
    """Start fetching a cache line."""
    place = builder.inttoptr(address, llvm.I8.as_pointer())
    llvm.call(builder, "llvm.prefetch.p0", ir.VoidType(), [place, llvm.I32(0), llvm.I32(2), llvm.I32(1)])


def _fetch_ahead(builder: Any, ahead: Any, places: list[Any], skip: Any, lines: range) -> None:
    """Fetch lines, byte offsets behind `skip`, of the KV groups whose addresses are at `places`; none if ahead is 0."""
    with builder.if_then(builder.icmp_unsigned("!=", ahead, llvm.I64(0))):
        for place in places:
            start = builder.add(llvm.load(builder, place, llvm.I64, _ADDRESS_BYTES), skip)
            for line in lines:
                prefetch(builder, llvm.offset(builder, start, line))


def _store_totals(builder: Any, totals: list[Any], out: Any, num_columns: int, row_bytes: int) -> None:
    for i, total in enumerate(totals):
        row, column = divmod(i, num_columns)
        place = llvm.offset(builder, out, row * row_bytes + column * LANES_BYTES)
        llvm.store(builder, builder.load(total), place, LANES_BYTES)


@instruction
def score_tile(
    _context: Any,
    _queries: Any,
    _keys: Any,
    _scores: Any,
    _ahead: Any,
    tile: Any,
    groups: Any,
    head_dim: Any,
    size: Any,
) -> Any:
    """scores[t, 16 g + lane] = query t · key `lane` of group g.

    queries: address of [tile, head_dim]; keys: address of `groups` addresses of KV groups; scores: address of float32
    [tile, CHUNK_TOKENS]; ahead: 0, or address of `groups` addresses of KV groups that will be needed soon. The rest are
    constants.
    """
    num_queries, num_groups, dim, num_bytes = (number.literal_value for number in (tile, groups, head_dim, size))
    num_words = dim * num_bytes // WORD_BYTES

    def emit(builder: Any, queries: Any, keys: Any, scores: Any, ahead: Any, *_constants: Any) -> None:
        totals = new_totals(builder, num_queries * num_groups)
        places = [llvm.offset(builder, keys, g * _ADDRESS_BYTES) for g in range(num_groups)]
        bases = [llvm.load(builder, place, llvm.I64, _ADDRESS_BYTES) for place in places]
        with cgutils.for_range(builder, llvm.I64(num_words // _UNROLL)) as loop:
            query = llvm.element(builder, queries, loop.index, _UNROLL * WORD_BYTES)
            rows = [llvm.element(builder, base, loop.index, _UNROLL * LANES_BYTES) for base in bases]
            for word in range(_UNROLL):
                strides = [t * dim * num_bytes + word * WORD_BYTES for t in range(num_queries)]
                add_products(
                    builder,
                    totals,
                    [llvm.offset(builder, query, stride) for stride in strides],
                    [llvm.offset(builder, row, word * LANES_BYTES) for row in rows],
                    num_bytes,
                )
            places = [llvm.offset(builder, ahead, g * _ADDRESS_BYTES) for g in range(num_groups)]
            skip = builder.mul(loop.index, llvm.I64(_UNROLL * LANES_BYTES))
            _fetch_ahead(builder, ahead, places, skip, range(0, _UNROLL * LANES_BYTES, LANES_BYTES))
        _store_totals(builder, totals, scores, num_groups, CHUNK_TOKENS * WORD_BYTES)

    return define(types.void, [types.int64] * 4 + [tile, groups, head_dim, size], emit)


@instruction
def value_tile(
    _context: Any,
    _weights: Any,
    _values: Any,
    _num_groups: Any,
    _out: Any,
    _ahead: Any,
    tile: Any,
    head_dim: Any,
    size: Any,
) -> Any:
    """out[t] = sum over tokens of weights[t, token] · value of token.

    weights: address of [tile, CHUNK_TOKENS]; values: address of num_groups addresses of KV groups; out: address of
    float32 [tile, head_dim]; ahead: as in score_tile, num_groups of them. The last three are constants.
    """
    num_queries, dim, num_bytes = (number.literal_value for number in (tile, head_dim, size))
    num_vectors = largest_divisor(dim // LANES, max(1, _MAX_TOTALS // num_queries))
    weight_row_bytes, row_bytes = CHUNK_TOKENS * num_bytes, dim * WORD_BYTES
    num_words = LANES * num_bytes // WORD_BYTES

    def emit_columns(
        builder: Any, weights: Any, values: Any, num_groups: Any, out: Any, ahead: Any, column_bytes: int
    ) -> None:
        totals = new_totals(builder, num_queries * num_vectors)
        with cgutils.for_range(builder, num_groups) as loop:
            place = llvm.element(builder, values, loop.index, _ADDRESS_BYTES)
            base = llvm.offset(builder, llvm.load(builder, place, llvm.I64, _ADDRESS_BYTES), column_bytes)
            weight = llvm.element(builder, weights, loop.index, LANES * num_bytes)
            for word in range(num_words):
                strides = [t * weight_row_bytes + word * WORD_BYTES for t in range(num_queries)]
                add_products(
                    builder,
                    totals,
                    [llvm.offset(builder, weight, stride) for stride in strides],
                    [llvm.offset(builder, base, word * row_bytes + g * LANES_BYTES) for g in range(num_vectors)],
                    num_bytes,
                )
            place = llvm.element(builder, ahead, loop.index, _ADDRESS_BYTES)
            if column_bytes == 0:
                _fetch_ahead(builder, ahead, [place], llvm.I64(0), range(0, num_words * row_bytes, LANES_BYTES))
        _store_totals(builder, totals, llvm.offset(builder, out, column_bytes), num_vectors, row_bytes)

    def emit(builder: Any, weights: Any, values: Any, num_groups: Any, out: Any, ahead: Any, *_constants: Any) -> None:
        for first in range(0, row_bytes, num_vectors * LANES_BYTES):
            emit_columns(builder, weights, values, num_groups, out, ahead, first)

    return define(types.void, [types.int64] * 5 + [tile, head_dim, size], emit)
