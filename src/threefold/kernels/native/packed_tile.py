"""Products of tokens with 32 packed outputs in whole numbers, as LLVM with all sums in registers.

A weight is a scale times a whole number, plus a minimum where its form has one; an input, a scale times a whole number
too. Of 32 inputs, which share their scales:

    x · weight = x scale · (scale · (x numbers · (numbers - zero)) + minimum · (sum of x numbers))

The sums of whole numbers are exact. Inputs lie rounded, eight tokens side by side:

    inputs   [tokens / 8, in / 32] of
             numbers   [8 tokens, 32] int8
             scales    [8] float32
             rests     [8]: -zero · sum of the numbers (int32), or, where zero is 0, scale · sum (float32)

Knows the order of a record (kernels/records.py has it in words), nothing about whole weights.
"""

# ruff: noqa: PLR0917 (instructions of compiled bodies, whose constants come last)

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types

from threefold.kernels.native import llvm
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.tiles import new_totals, prefetch
from threefold.kernels.native.vector import define, f32x16, instruction
from threefold.kernels.records import FACTOR_BYTES, FOUR_BITS, RECORD_INPUTS, RECORD_OUTPUTS, Form

NOT_ROUNDED = -1
"""In place of the zero of the weights that results are rounded for: results are written as they are."""
TILE_TOKENS = 8
SCALES_BYTES = TILE_TOKENS * RECORD_INPUTS
"""From the beginning of a tile's 32 inputs to their scales."""
RESTS_BYTES = SCALES_BYTES + TILE_TOKENS * WORD_BYTES
INPUTS_BYTES = RESTS_BYTES + TILE_TOKENS * WORD_BYTES
"""32 inputs of a tile."""


_GROUPS = RECORD_OUTPUTS // LANES
_NUM_WORDS = RECORD_INPUTS // WORD_BYTES  # a word is four inputs
_LARGEST = 127.0
_AHEAD_BYTES = 4096
_VHALF, _VI8 = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(llvm.I8, LANES)


def inputs_bytes(num_tokens: int, num_records: int) -> int:
    """Memory for so many tokens of 32 · num_records inputs."""
    return -(-num_tokens // TILE_TOKENS) * num_records * INPUTS_BYTES


def _factors(builder: Any, record: Any, group: int, row: int) -> Any:
    """Scales (row 0) or minima (row 1) of 16 outputs."""
    place = llvm.offset(builder, record, (row * _GROUPS + group) * LANES * FACTOR_BYTES)
    return builder.fpext(llvm.load(builder, place, _VHALF, LANES * FACTOR_BYTES), llvm.VF32)


def _numbers(builder: Any, form: Form, record: Any, group: int, pair: int) -> list[Any]:
    """Two words of 16 outputs: four bytes each."""
    vector_bytes = 2 * LANES_BYTES * form.bits // 8
    group_bytes = _NUM_WORDS // 2 * vector_bytes
    place = llvm.offset(builder, record, form.head_bytes + group * group_bytes + pair * vector_bytes)
    first = llvm.load(builder, place, llvm.VI32, LANES_BYTES)
    if form.bits != FOUR_BITS:
        return [first, llvm.load(builder, llvm.offset(builder, place, LANES_BYTES), llvm.VI32, LANES_BYTES)]
    mask = llvm.ints(0x0F0F0F0F)
    return [builder.and_(first, mask), builder.and_(builder.lshr(first, llvm.ints(4)), mask)]


@instruction
def packed_tile(
    _context: Any,
    _inputs: Any,
    _num_rows: Any,
    _record: Any,
    _num_records: Any,
    _bias: Any,
    _out: Any,
    _out_bytes: Any,
    bits: Any,
    zero: Any,
    minimum: Any,
    out_size: Any,
    is_added: Any,
) -> Any:
    """out[r, 0..32] = x[r] · 32 packed outputs + bias for the first 1 to 8 tokens of a tile, out_bytes apart.

    inputs: the tile's; bias: of float32 [32]. The last five are constants; out_size: bytes of a number of the output;
    is_added: to what is there already.
    """
    form = Form(bits.literal_value, zero.literal_value, bool(minimum.literal_value))
    ending = _Ending(out_size.literal_value, bool(is_added.literal_value))

    def emit(builder: Any, inputs: Any, num_rows: Any, *operands: Any) -> None:
        end = builder.append_basic_block("end")
        switch = builder.switch(num_rows, end)
        for rows in range(1, TILE_TOKENS + 1):  # of their own each, so that all sums are in registers
            block = builder.append_basic_block(f"rows{rows}")
            switch.add_case(llvm.I64(rows), block)
            builder.position_at_end(block)
            _emit_tile(builder, form, ending, rows, inputs, *operands[:5])
            builder.branch(end)
        builder.position_at_end(end)

    return define(types.void, [types.int64] * 7 + [bits, zero, minimum, out_size, is_added], emit)


class _Ending(NamedTuple):
    """What becomes of sums."""

    size: int
    """Bytes of a number of the output."""
    is_added: bool


def _emit_tile(
    builder: Any,
    form: Form,
    ending: _Ending,
    num_rows: int,
    inputs: Any,
    record: Any,
    num_records: Any,
    bias: Any,
    out: Any,
    out_bytes: Any,
) -> None:
    """A tile of so many tokens."""
    totals = new_totals(builder, num_rows * _GROUPS)
    with cgutils.for_range(builder, num_records) as loop:
        start = llvm.element(builder, inputs, loop.index, INPUTS_BYTES)
        _add_record(builder, form, totals, start, llvm.element(builder, record, loop.index, form.record_bytes))
    for i, total in enumerate(totals):
        row, group = divmod(i, _GROUPS)
        offset = llvm.load(builder, llvm.offset(builder, bias, group * LANES_BYTES), llvm.VF32, WORD_BYTES)
        result = builder.fadd(builder.load(total), offset)
        start = builder.add(out, builder.mul(out_bytes, llvm.I64(row)))
        place = llvm.offset(builder, start, group * LANES * ending.size)
        if ending.is_added:
            result = builder.fadd(llvm.floats_at(builder, place, ending.size), result)
        rounded = result if ending.size == WORD_BYTES else llvm.to_bf16(builder, result)
        llvm.store(builder, rounded, place, ending.size)


def _add_record(builder: Any, form: Form, totals: list[Any], inputs: Any, record: Any) -> None:
    """totals[r, g] += 32 inputs of r · their weights of g."""
    num_rows = len(totals) // _GROUPS
    for line in range(0, form.record_bytes, LANES_BYTES):
        prefetch(builder, llvm.offset(builder, record, _AHEAD_BYTES + line))
    parts = _parts(builder, form, inputs, record, num_rows)
    scales = [_factors(builder, record, group, 0) for group in range(_GROUPS)]
    minima = [_factors(builder, record, group, 1) for group in range(_GROUPS)] if form.has_minimum else []
    for i, (total, part) in enumerate(zip(totals, parts, strict=True)):
        row, group = divmod(i, _GROUPS)
        x_scale = _float_at(builder, inputs, SCALES_BYTES + row * WORD_BYTES)
        scaled = builder.fmul(builder.sitofp(part, llvm.VF32), x_scale)
        result = llvm.multiply_add(builder, scaled, scales[group], builder.load(total))
        if form.has_minimum:
            x_sum = _float_at(builder, inputs, RESTS_BYTES + row * WORD_BYTES)
            result = llvm.multiply_add(builder, minima[group], x_sum, result)
        builder.store(result, total)


def _parts(builder: Any, form: Form, inputs: Any, record: Any, num_rows: int) -> list[Any]:
    """Whole numbers of each row times those of the record's outputs, summed up."""
    firsts = [llvm.ints(0)] * num_rows
    if form.zero:
        rests = [llvm.offset(builder, inputs, RESTS_BYTES + row * WORD_BYTES) for row in range(num_rows)]
        firsts = [llvm.splat(builder, llvm.load(builder, rest, llvm.I32, WORD_BYTES)) for rest in rests]
    parts = [first for first in firsts for _ in range(_GROUPS)]
    for pair in range(_NUM_WORDS // 2):
        numbers = [_numbers(builder, form, record, group, pair) for group in range(_GROUPS)]
        for half in range(2):
            for row in range(num_rows):
                skip = row * RECORD_INPUTS + (2 * pair + half) * WORD_BYTES
                word = llvm.load(builder, llvm.offset(builder, inputs, skip), llvm.I32, WORD_BYTES)
                word = llvm.splat(builder, word)
                for group in range(_GROUPS):
                    i = row * _GROUPS + group
                    parts[i] = llvm.dot_bytes(builder, parts[i], numbers[group][half], word)
    return parts


def _float_at(builder: Any, address: Any, num_bytes: int) -> Any:
    return llvm.splat(builder, llvm.load(builder, llvm.offset(builder, address, num_bytes), llvm.F32, WORD_BYTES))


@instruction
def round_inputs(_context: Any, _low: Any, _high: Any, _inputs: Any, _first: Any, zero: Any) -> Any:
    """Write 32 inputs of token `first` of a tile, whose inputs are at an address; one that is not finite makes the
    scale NaN. zero: a constant, of the weights that they will be multiplied with.
    """
    zero_number = zero.literal_value

    def emit(builder: Any, low: Any, high: Any, inputs: Any, first: Any, *_constants: Any) -> None:
        halves = low, high
        sizes = [llvm.call(builder, "llvm.fabs.v16f32", llvm.VF32, [half]) for half in halves]
        largest = builder.select(builder.fcmp_ordered("<", sizes[0], sizes[1]), sizes[1], sizes[0])
        largest = llvm.call(builder, "llvm.vector.reduce.fmax.v16f32", llvm.F32, [largest])
        nothing = builder.fmul(builder.fadd(*halves), llvm.floats(0.0))
        nothing = llvm.call(builder, "llvm.vector.reduce.fadd.v16f32", llvm.F32, [llvm.F32(0.0), nothing], llvm.FAST)
        scale = builder.fadd(builder.fmul(largest, llvm.F32(1 / _LARGEST)), nothing)
        is_zero = builder.fcmp_ordered("==", largest, llvm.F32(0.0))
        inverse = builder.select(is_zero, llvm.F32(0.0), builder.fdiv(llvm.F32(_LARGEST), largest))
        numbers = [_rounded(builder, builder.fmul(half, llvm.splat(builder, inverse))) for half in halves]
        total = llvm.call(builder, "llvm.vector.reduce.add.v16i32", llvm.I32, [builder.add(*numbers)])
        start = builder.add(inputs, builder.mul(first, llvm.I64(RECORD_INPUTS)))
        for half, vector in enumerate(numbers):
            llvm.store(builder, builder.trunc(vector, _VI8), llvm.offset(builder, start, half * LANES), WORD_BYTES)
        factors = builder.add(inputs, builder.mul(first, llvm.I64(WORD_BYTES)))
        llvm.store(builder, scale, llvm.offset(builder, factors, SCALES_BYTES), WORD_BYTES)
        times = builder.mul(total, llvm.I32(-zero_number))
        rest = times if zero_number else builder.fmul(builder.sitofp(total, llvm.F32), scale)
        llvm.store(builder, rest, llvm.offset(builder, factors, RESTS_BYTES), WORD_BYTES)

    return define(types.void, [f32x16, f32x16, types.int64, types.int64, zero], emit)


def _rounded(builder: Any, vector: Any) -> Any:
    return builder.fptosi(llvm.call(builder, "llvm.rint.v16f32", llvm.VF32, [vector]), llvm.VI32)
