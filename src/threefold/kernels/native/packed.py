"""Products of tokens with weights packed in 4 or 8 bits, which are read once for eight tokens, at the speed of memory.

A token's result is the same number however many tokens stand beside it. See kernels/packed.py for what is computed,
kernels/records.py for how weights lie, packed_tile.py for how inputs do.
"""

# ruff: noqa: PLR0917 (pieces of compiled bodies)

from __future__ import annotations

from functools import cache

import numpy as np

from threefold.kernels.native import vector
from threefold.kernels.native.activation import silu_mul
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.norm import inverse_rms
from threefold.kernels.native.packed_tile import INPUTS_BYTES, NOT_ROUNDED, TILE_TOKENS, packed_tile, round_inputs
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.vector import inlined, peek_f16, peek_f32, peek_i32, peek_i64, poke_f32
from threefold.kernels.records import FACTOR_BYTES, RECORD_INPUTS, RECORD_OUTPUTS, Form

_BLOCK_BYTES = TILE_TOKENS * RECORD_OUTPUTS * WORD_BYTES
_NUMBERS_BYTES = RECORD_INPUTS * WORD_BYTES
_SUMS_BYTES = 2 * _BLOCK_BYTES  # of gates and what is gated


@cache
def rounding_body(zero: int, x_size: int) -> Run:
    """run(num_tokens, x, inputs, num_records): items are tokens.

    x: [num_tokens, 32 · num_records] of x_size bytes; inputs: as packed_tile.py has them.
    """
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        x, inputs, num_records = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32)
        while True:
            token = vector.take_next(args)
            if token >= peek_i64(args + 8):
                return
            place = inputs + token // TILE_TOKENS * num_records * INPUTS_BYTES
            for i in range(num_records):
                start = x + (token * num_records + i) * RECORD_INPUTS * x_size
                low, high = vector.load(start, x_size), vector.load(start + LANES * x_size, x_size)
                round_inputs(low, high, place + i * INPUTS_BYTES, token % TILE_TOKENS, zero)

    return Run(body, 3)


@cache
def rounded_norm_body(zero: int, size: int) -> Run:
    """run(num_tokens, x, weight, inputs, num_records, eps): RMS norm of tokens, rounded; items are tokens.

    x: [num_tokens, 32 · num_records] of `size` bytes; weight: one row of it; inputs: as packed_tile.py has them; eps:
    address of a float32.
    """
    source = fingerprint()
    step = LANES * size

    def body(args: int) -> None:
        _ = source
        x, weights, inputs, num_records = (
            peek_i64(args + 16),
            peek_i64(args + 24),
            peek_i64(args + 32),
            peek_i64(args + 40),
        )
        eps = peek_f32(peek_i64(args + 48))
        while True:
            token = vector.take_next(args)
            if token >= peek_i64(args + 8):
                return
            row = x + token * num_records * 2 * step
            factor = vector.splat(inverse_rms(row, num_records * RECORD_INPUTS, eps, size))
            place = inputs + token // TILE_TOKENS * num_records * INPUTS_BYTES
            for i in range(num_records):
                start, weight = row + 2 * i * step, weights + 2 * i * step
                low = vector.load(start, size) * factor * vector.load(weight, size)
                high = vector.load(start + step, size) * factor * vector.load(weight + step, size)
                round_inputs(low, high, place + i * INPUTS_BYTES, token % TILE_TOKENS, zero)

    return Run(body, 5)


@inlined
def _unpack(record: int, output: int, numbers: int, bits: int, head_bytes: int) -> None:
    """Numbers of one output of a record, as float32."""
    mask, words_each = (1 << bits) - 1, 8 // bits
    start = record + head_bytes + output // LANES * (RECORD_INPUTS * LANES * bits // 8) + output % LANES * WORD_BYTES
    for word in range(RECORD_INPUTS // WORD_BYTES):
        four = peek_i32(start + word // words_each * LANES_BYTES) >> (word % words_each * bits)
        for i in range(WORD_BYTES):
            poke_f32(numbers + (word * WORD_BYTES + i) * WORD_BYTES, np.float32((four >> (8 * i)) & mask))


@cache
def unpacking_body(form: Form, out_size: int) -> Run:
    """run(num_tokens, token_ids, records, out, num_records): items are tokens.

    token_ids: int64 [num_tokens], outputs of the weight; out: their weights, [num_tokens, 32 · num_records] of out_size
    bytes.
    """
    source = fingerprint()
    bits, zero, minimum, record_bytes, head = form.bits, form.zero, form.has_minimum, form.record_bytes, form.head_bytes

    def body(args: int) -> None:
        _ = source
        token_ids, records, out, num_records = (
            peek_i64(args + 16),
            peek_i64(args + 24),
            peek_i64(args + 32),
            peek_i64(args + 40),
        )
        numbers = vector.stack_bytes(_NUMBERS_BYTES)
        while True:
            token = vector.take_next(args)
            if token >= peek_i64(args + 8):
                return
            part, output = divmod(peek_i64(token_ids + 8 * token), RECORD_OUTPUTS)
            for i in range(num_records):
                record = records + (part * num_records + i) * record_bytes
                _unpack(record, output, numbers, bits, head)
                scale, lowest = vector.splat(peek_f16(record + output * FACTOR_BYTES)), vector.splat(np.float32(0.0))
                if minimum:
                    lowest = vector.splat(peek_f16(record + (RECORD_OUTPUTS + output) * FACTOR_BYTES))
                for half in range(RECORD_INPUTS // LANES):
                    number = vector.load(numbers + half * LANES_BYTES, WORD_BYTES) - vector.splat(np.float32(zero))
                    place = out + ((token * num_records + i) * RECORD_INPUTS + half * LANES) * out_size
                    vector.store(place, number * scale + lowest, out_size)

    return Run(body, 4)


@cache
def packed_body(form: Form, out_size: int, *, is_added: bool = False) -> Run:
    """run(num_items, inputs, records, bias, out, num_tokens, num_records, outputs, parts_each).

    Items are parts_each times 32 outputs. inputs: as packed_tile.py has them; bias: float32 [outputs]; out:
    [num_tokens, outputs] of out_size bytes, to which results are added if is_added.
    """
    source = fingerprint()
    bits, zero, minimum, record_bytes = form.bits, form.zero, int(form.has_minimum), form.record_bytes
    adds = int(is_added)

    def body(args: int) -> None:
        _ = source
        inputs, records, bias, out = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32), peek_i64(args + 40)
        num_tokens, num_records = peek_i64(args + 48), peek_i64(args + 56)
        outputs, parts_each = peek_i64(args + 64), peek_i64(args + 72)
        out_bytes = outputs * out_size
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            for part in range(item * parts_each, min((item + 1) * parts_each, outputs // RECORD_OUTPUTS)):
                block = records + part * num_records * record_bytes
                offset = bias + part * RECORD_OUTPUTS * WORD_BYTES
                for first in range(0, num_tokens, TILE_TOKENS):
                    packed_tile(
                        inputs + first * (num_records * INPUTS_BYTES // TILE_TOKENS),
                        min(TILE_TOKENS, num_tokens - first),
                        block,
                        num_records,
                        offset,
                        out + first * out_bytes + part * RECORD_OUTPUTS * out_size,
                        out_bytes,
                        bits,
                        zero,
                        minimum,
                        out_size,
                        adds,
                    )

    return Run(body, 8)


@inlined
def _gate(sums: int, num_tokens: int, out: int, first: int, part: int, width: int, size: int, next_zero: int) -> None:
    """32 channels of up to eight tokens, from sums of their gates and, a block further on, of what is gated."""
    for row in range(num_tokens):
        gate = sums + row * RECORD_OUTPUTS * WORD_BYTES
        low = silu_mul(vector.load(gate, WORD_BYTES), vector.load(gate + _BLOCK_BYTES, WORD_BYTES))
        gate += LANES_BYTES
        high = silu_mul(vector.load(gate, WORD_BYTES), vector.load(gate + _BLOCK_BYTES, WORD_BYTES))
        if next_zero == NOT_ROUNDED:
            place = out + ((first + row) * width + part * RECORD_OUTPUTS) * size
            vector.store(place, low, size)
            vector.store(place + LANES * size, high, size)
        else:
            records = first // TILE_TOKENS * (width // RECORD_INPUTS) + part
            round_inputs(low, high, out + records * INPUTS_BYTES, row, next_zero)


@cache
def gated_body(form: Form, out_size: int, next_zero: int) -> Run:
    """run(num_items, inputs, records, bias, out, num_tokens, num_records, width): items are 32 of `width` channels.

    As packed_body, but of records and bias every even part of 32 outputs is a gate, and the next one is what it is
    multiplied with. out: [num_tokens, width] of out_size bytes; or, unless next_zero is NOT_ROUNDED, inputs rounded for
    weights with that zero.
    """
    source = fingerprint()
    bits, zero, minimum, record_bytes = form.bits, form.zero, int(form.has_minimum), form.record_bytes

    def body(args: int) -> None:
        _ = source
        inputs, records, bias, out = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32), peek_i64(args + 40)
        num_tokens, num_records, width = peek_i64(args + 48), peek_i64(args + 56), peek_i64(args + 64)
        sums = vector.stack_bytes(_SUMS_BYTES)
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            for first in range(0, num_tokens, TILE_TOKENS):
                rows = min(TILE_TOKENS, num_tokens - first)
                for part in range(2):
                    packed_tile(
                        inputs + first * (num_records * INPUTS_BYTES // TILE_TOKENS),
                        rows,
                        records + (2 * item + part) * num_records * record_bytes,
                        num_records,
                        bias + (2 * item + part) * RECORD_OUTPUTS * WORD_BYTES,
                        sums + part * _BLOCK_BYTES,
                        RECORD_OUTPUTS * WORD_BYTES,
                        bits,
                        zero,
                        minimum,
                        WORD_BYTES,
                        0,
                    )
                _gate(sums, rows, out, first, item, width, out_size, next_zero)

    return Run(body, 7)
