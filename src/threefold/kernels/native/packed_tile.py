"""Products of tokens with 32 packed outputs in whole numbers, as LLVM with all sums in registers.

A weight is a scale times a whole number, plus a minimum where its form has one; an input, a scale times a whole number
too. Of 32 inputs, which share their scales:

    x · weight = x scale · (scale · (x numbers · (numbers - zero)) + minimum · (sum of x numbers))

The sums of whole numbers are exact. Knows the order of a record (kernels/records.py has it in words), nothing about
whole weights.
"""

# ruff: noqa: PLR0917 (instructions of compiled bodies, whose constants come last)

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from threefold.kernels.native import llvm
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.tiles import new_totals, prefetch
from threefold.kernels.native.vector import define, instruction
from threefold.kernels.records import FACTOR_BYTES, FOUR_BITS, RECORD_INPUTS, RECORD_OUTPUTS, Form

INPUT_BYTES = RECORD_INPUTS + 2 * WORD_BYTES
"""32 inputs as `round_inputs` leaves them: int8 numbers, their scale, and what `zero` or a minimum is times of."""
_GROUPS = RECORD_OUTPUTS // LANES
_NUM_WORDS = RECORD_INPUTS // WORD_BYTES  # a word is four inputs
_LARGEST = 127.0
_AHEAD_BYTES = 4096
_VHALF, _VI8 = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(llvm.I8, LANES)


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
    _x: Any,
    _x_bytes: Any,
    _record: Any,
    _num_records: Any,
    _bias: Any,
    _out: Any,
    _out_bytes: Any,
    rows: Any,
    bits: Any,
    zero: Any,
    minimum: Any,
    out_size: Any,
) -> Any:
    """out[r, 0..32] = x[r] · 32 packed outputs + bias for `rows` rows, x_bytes and out_bytes apart.

    x: as `round_inputs` wrote it. bias: of float32 [32]. The last five are constants; out_size: bytes of a number of
    the output.
    """
    num_rows, size = rows.literal_value, out_size.literal_value
    form = Form(bits.literal_value, zero.literal_value, bool(minimum.literal_value))

    def emit(
        builder: Any,
        x: Any,
        x_bytes: Any,
        record: Any,
        num_records: Any,
        bias: Any,
        out: Any,
        out_bytes: Any,
        *_constants: Any,
    ) -> None:
        totals = new_totals(builder, num_rows * _GROUPS)
        starts = [builder.add(x, builder.mul(x_bytes, llvm.I64(r))) for r in range(num_rows)]
        with cgutils.for_range(builder, num_records) as loop:
            inputs = [llvm.element(builder, start, loop.index, INPUT_BYTES) for start in starts]
            _add_record(builder, form, totals, inputs, llvm.element(builder, record, loop.index, form.record_bytes))
        for i, total in enumerate(totals):
            row, group = divmod(i, _GROUPS)
            offset = llvm.load(builder, llvm.offset(builder, bias, group * LANES_BYTES), llvm.VF32, WORD_BYTES)
            result = builder.fadd(builder.load(total), offset)
            place = llvm.offset(builder, builder.add(out, builder.mul(out_bytes, llvm.I64(row))), group * LANES * size)
            llvm.store(builder, result if size == WORD_BYTES else llvm.to_bf16(builder, result), place, size)

    return define(types.void, [types.int64] * 7 + [rows, bits, zero, minimum, out_size], emit)


def _add_record(builder: Any, form: Form, totals: list[Any], inputs: list[Any], record: Any) -> None:
    """totals[r, g] += 32 inputs of r · their weights of g."""
    for line in range(0, form.record_bytes, LANES_BYTES):
        prefetch(builder, llvm.offset(builder, record, _AHEAD_BYTES + line))
    parts = []
    for start in inputs:
        first = llvm.ints(0)
        if form.zero:
            place = llvm.offset(builder, start, RECORD_INPUTS + WORD_BYTES)
            first = llvm.splat(builder, llvm.load(builder, place, llvm.I32, WORD_BYTES))
        parts += [first] * _GROUPS
    for pair in range(_NUM_WORDS // 2):
        numbers = [_numbers(builder, form, record, group, pair) for group in range(_GROUPS)]
        for half in range(2):
            for r, start in enumerate(inputs):
                place = llvm.offset(builder, start, (2 * pair + half) * WORD_BYTES)
                word = llvm.splat(builder, llvm.load(builder, place, llvm.I32, WORD_BYTES))
                for group in range(_GROUPS):
                    i = r * _GROUPS + group
                    parts[i] = llvm.dot_bytes(builder, parts[i], numbers[group][half], word)
    scales = [_factors(builder, record, group, 0) for group in range(_GROUPS)]
    minima = [_factors(builder, record, group, 1) for group in range(_GROUPS)] if form.has_minimum else []
    for i, (total, part) in enumerate(zip(totals, parts, strict=True)):
        row, group = divmod(i, _GROUPS)
        x_scale = _float_at(builder, inputs[row], RECORD_INPUTS)
        scaled = builder.fmul(builder.sitofp(part, llvm.VF32), x_scale)
        result = llvm.multiply_add(builder, scaled, scales[group], builder.load(total))
        if form.has_minimum:
            x_sum = _float_at(builder, inputs[row], RECORD_INPUTS + WORD_BYTES)
            result = llvm.multiply_add(builder, minima[group], x_sum, result)
        builder.store(result, total)


def _float_at(builder: Any, address: Any, num_bytes: int) -> Any:
    return llvm.splat(builder, llvm.load(builder, llvm.offset(builder, address, num_bytes), llvm.F32, WORD_BYTES))


@instruction
def round_inputs(_context: Any, _x: Any, _out: Any, size: Any, zero: Any) -> Any:
    """Write 32 inputs as int8 numbers, their scale (float32), and either -zero · sum of the numbers (int32) or, where
    zero is 0, scale · sum of the numbers (float32). One that is not finite makes the scale NaN.
    """
    num_bytes, zero_number = size.literal_value, zero.literal_value

    def emit(builder: Any, x: Any, out: Any, *_constants: Any) -> None:
        halves = [
            llvm.floats_at(builder, llvm.offset(builder, x, half * LANES * num_bytes), num_bytes) for half in (0, 1)
        ]
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
        for half, vector in enumerate(numbers):
            llvm.store(builder, builder.trunc(vector, _VI8), llvm.offset(builder, out, half * LANES), WORD_BYTES)
        llvm.store(builder, scale, llvm.offset(builder, out, RECORD_INPUTS), WORD_BYTES)
        times = builder.mul(total, llvm.I32(-zero_number))
        rest = times if zero_number else builder.fmul(builder.sitofp(total, llvm.F32), scale)
        llvm.store(builder, rest, llvm.offset(builder, out, RECORD_INPUTS + WORD_BYTES), WORD_BYTES)

    return define(types.void, [types.int64] * 2 + [size, zero], emit)


def _rounded(builder: Any, vector: Any) -> Any:
    return builder.fptosi(llvm.call(builder, "llvm.rint.v16f32", llvm.VF32, [vector]), llvm.VI32)
