"""Between the q, k, v product and attention: norm of query and key heads, rotation, and the write into the paged KV.

a token of qkv   [ query heads | key heads | value heads ]      queries and keys are rotated where they lie
a KV group       16 tokens of one head; layout in kernels/kv.py
"""

from __future__ import annotations

from functools import cache

from threefold.kernels.native import vector
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.norm import inverse_rms
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.vector import inlined, peek_f32, peek_i16, peek_i32, peek_i64, poke_i16, poke_i32

TOKENS_PER_ITEM = 1
_NUM_ARGS = 14


@inlined
def _normalise(head: int, weight: int, eps: float, head_dim: int, size: int) -> None:
    factor = vector.splat(inverse_rms(head, head_dim, eps, size))
    for i in range(0, head_dim * size, LANES * size):
        vector.store(head + i, vector.load(head + i, size) * factor * vector.load(weight + i, size), size)


@inlined
def _rotate(head: int, angles: int, head_dim: int, size: int) -> None:
    """(a, b) -> (a cos - b sin, b cos + a sin), a and b being the head's halves."""
    half = head_dim // 2
    for i in range(0, half, LANES):
        low, high = head + i * size, head + (half + i) * size
        a, b = vector.load(low, size), vector.load(high, size)
        cos, sin = (
            vector.load(angles + i * WORD_BYTES, WORD_BYTES),
            vector.load(angles + (half + i) * WORD_BYTES, WORD_BYTES),
        )
        vector.store(low, a * cos - b * sin, size)
        vector.store(high, b * cos + a * sin, size)


@inlined
def _write_key(head: int, group: int, lane: int, head_dim: int, size: int) -> None:
    for word in range(head_dim * size // WORD_BYTES):
        poke_i32(group + word * LANES_BYTES + lane * WORD_BYTES, peek_i32(head + word * WORD_BYTES))


@inlined
def _write_value(head: int, group: int, lane: int, head_dim: int, size: int) -> None:
    # A value that is not finite would spoil whoever uses the block next: its weight is zero, and 0 · NaN is NaN. The
    # request it belongs to still sees its fault, because its queries and keys are not finite either.
    for i in range(0, head_dim * size, LANES * size):
        vector.store(head + i, vector.finite_or_zero(vector.load(head + i, size)), size)
    row = group + lane * size // WORD_BYTES * head_dim * WORD_BYTES + lane * size % WORD_BYTES
    for d in range(head_dim):
        if size == WORD_BYTES:
            poke_i32(row + d * WORD_BYTES, peek_i32(head + d * size))
        else:
            poke_i16(row + d * WORD_BYTES, peek_i16(head + d * size))


@cache
def rotate_and_store_body(head_dim: int, size: int) -> Run:
    """run(num_items, qkv, num_tokens, num_heads, num_kv_heads, angles, slots, keys, values, block_size, norms…).

    qkv: [num_tokens, (num_heads + 2 num_kv_heads) * head_dim] of `size` bytes; angles: float32 [num_tokens, head_dim],
    cos then sin; slots: int64 [num_tokens]; the last four: has_norms (0 or 1), query norm's weight, key norm's weight,
    address of eps. Items are TOKENS_PER_ITEM tokens. head_dim is a multiple of 32.
    """
    source = fingerprint()
    head_bytes = head_dim * size
    group_bytes = LANES * head_bytes

    def body(args: int) -> None:
        _ = source
        qkv, num_tokens, num_heads, num_kv_heads = (
            peek_i64(args + 16),
            peek_i64(args + 24),
            peek_i64(args + 32),
            peek_i64(args + 40),
        )
        angles, slots, keys, values = peek_i64(args + 48), peek_i64(args + 56), peek_i64(args + 64), peek_i64(args + 72)
        block_size, has_norms = peek_i64(args + 80), peek_i64(args + 88)
        query_weight, key_weight, eps = peek_i64(args + 96), peek_i64(args + 104), peek_f32(peek_i64(args + 112))
        block_groups = block_size // LANES
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            for token in range(item * TOKENS_PER_ITEM, min((item + 1) * TOKENS_PER_ITEM, num_tokens)):
                queries = qkv + token * (num_heads + 2 * num_kv_heads) * head_bytes
                for h in range(num_heads + num_kv_heads):
                    if has_norms != 0:
                        weight = query_weight if h < num_heads else key_weight
                        _normalise(queries + h * head_bytes, weight, eps, head_dim, size)
                    _rotate(queries + h * head_bytes, angles + token * head_dim * WORD_BYTES, head_dim, size)
                slot = peek_i64(slots + token * 8)
                block, place = slot // block_size, slot % block_size
                for h in range(num_kv_heads):
                    group = ((block * num_kv_heads + h) * block_groups + place // LANES) * group_bytes
                    head = queries + (num_heads + h) * head_bytes
                    _write_key(head, keys + group, place % LANES, head_dim, size)
                    _write_value(head + num_kv_heads * head_bytes, values + group, place % LANES, head_dim, size)

    return Run(body, _NUM_ARGS)
