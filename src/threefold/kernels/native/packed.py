"""Products of tokens with weights packed in 4 or 8 bits, which are read once for eight tokens, at the speed of memory.

A token's result is the same number however many tokens stand beside it. See kernels/packed.py for what is computed and
kernels/records.py for how weights lie.
"""

# ruff: noqa: PLR0917 (pieces of compiled bodies)

from __future__ import annotations

from functools import cache

from threefold.kernels.native import vector
from threefold.kernels.native.llvm import WORD_BYTES
from threefold.kernels.native.packed_tile import INPUT_BYTES, packed_tile, round_inputs
from threefold.kernels.native.team import Run, compile_body, fingerprint
from threefold.kernels.native.vector import inlined, peek_i64
from threefold.kernels.records import RECORD_INPUTS, RECORD_OUTPUTS, Form

_NUM_ARGS = 10


@inlined
def _round_token(x: int, inputs: int, num_records: int, x_size: int, zero: int) -> None:
    for i in range(num_records):
        round_inputs(x + i * RECORD_INPUTS * x_size, inputs + i * INPUT_BYTES, x_size, zero)


@cache
def rounding_body(zero: int, x_size: int) -> Run:
    """run(num_tokens, x, inputs, num_records): items are tokens.

    x: [num_tokens, 32 · num_records] of x_size bytes; inputs: [num_tokens, num_records, INPUT_BYTES].
    """
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        x, inputs, num_records = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32)
        while True:
            token = vector.take_next(args)
            if token >= peek_i64(args + 8):
                return
            skip = token * num_records
            _round_token(x + skip * RECORD_INPUTS * x_size, inputs + skip * INPUT_BYTES, num_records, x_size, zero)

    return compile_body(body, 3)


@inlined
def _multiply(
    x: int,
    x_bytes: int,
    block: int,
    num_records: int,
    bias: int,
    out: int,
    out_bytes: int,
    num_tokens: int,
    bits: int,
    zero: int,
    minimum: int,
    out_size: int,
) -> None:
    """All tokens with 32 outputs."""
    left = num_tokens
    while left >= 8:
        packed_tile(x, x_bytes, block, num_records, bias, out, out_bytes, 8, bits, zero, minimum, out_size)
        x, out, left = x + 8 * x_bytes, out + 8 * out_bytes, left - 8
    if left >= 4:
        packed_tile(x, x_bytes, block, num_records, bias, out, out_bytes, 4, bits, zero, minimum, out_size)
        x, out, left = x + 4 * x_bytes, out + 4 * out_bytes, left - 4
    if left >= 2:
        packed_tile(x, x_bytes, block, num_records, bias, out, out_bytes, 2, bits, zero, minimum, out_size)
        x, out, left = x + 2 * x_bytes, out + 2 * out_bytes, left - 2
    if left:
        packed_tile(x, x_bytes, block, num_records, bias, out, out_bytes, 1, bits, zero, minimum, out_size)


@cache
def packed_body(form: Form, x_size: int, out_size: int) -> Run:
    """run(num_items, x, records, bias, out, inputs, is_rounded, num_tokens, num_records, outputs, parts_each).

    Items are parts_each times 32 outputs. x: [num_tokens, 32 · num_records] of x_size bytes; bias: float32 [outputs];
    out: [num_tokens, outputs] of out_size bytes; inputs: x as `rounding_body` leaves it, or memory for that.
    """
    source = fingerprint()
    bits, zero, minimum, record_bytes = form.bits, form.zero, int(form.has_minimum), form.record_bytes

    def body(args: int) -> None:
        _ = source
        x, records, bias, out = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32), peek_i64(args + 40)
        inputs, is_rounded, num_tokens = peek_i64(args + 48), peek_i64(args + 56), peek_i64(args + 64)
        num_records, outputs, parts_each = peek_i64(args + 72), peek_i64(args + 80), peek_i64(args + 88)
        token_bytes, out_bytes = num_records * INPUT_BYTES, outputs * out_size
        if not is_rounded:  # every thread writes it all, so that none waits
            _round_token(x, inputs, num_tokens * num_records, x_size, zero)
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            for part in range(item * parts_each, min((item + 1) * parts_each, outputs // RECORD_OUTPUTS)):
                block = records + part * num_records * record_bytes
                offset = bias + part * RECORD_OUTPUTS * WORD_BYTES
                place = out + part * RECORD_OUTPUTS * out_size
                _multiply(
                    inputs,
                    token_bytes,
                    block,
                    num_records,
                    offset,
                    place,
                    out_bytes,
                    num_tokens,
                    bits,
                    zero,
                    minimum,
                    out_size,
                )

    return compile_body(body, _NUM_ARGS)
