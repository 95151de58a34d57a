"""LLVM building blocks for vectors of 16 float32 lanes.

Knows nothing about numba's types or about models. LLVM splits 16 lanes into what the machine has, so nothing here needs
AVX-512; products of bf16 pairs use the processor's instruction where there is one and shifts elsewhere.

A *word* is 4 bytes of memory: one float32, or two neighbouring bf16 (a bf16 is the upper half of a float32). The dot of
two words is then a product, or a sum of two products; which one is told by the size of a number in bytes, 4 or 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils

LANES = 16
WORD_BYTES = 4
LANES_BYTES = LANES * WORD_BYTES

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
VF32, VI32, VI16 = (ir.VectorType(element, LANES) for element in (F32, I32, I16))
FAST = ("contract", "reassoc", "nsz", "arcp")  # not nnan and ninf: a NaN that goes in must come out


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_VBF16, _VBF32 = ir.VectorType(_BFloat(), LANES), ir.VectorType(_BFloat(), 2 * LANES)


def has_feature(name: str) -> bool:
    """Whether this processor has a feature, by LLVM's name for it, like avx512bf16."""
    return bool(binding.get_host_cpu_features().get(name, False))


def load(builder: Any, address: Any, element: Any, align: int) -> Any:
    """Load from an int64 address that is a multiple of `align` bytes."""
    value = builder.load(builder.inttoptr(address, element.as_pointer()))
    value.align = align
    return value


def store(builder: Any, value: Any, address: Any, align: int) -> None:
    """Store to an int64 address that is a multiple of `align` bytes."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def offset(builder: Any, address: Any, num_bytes: int) -> Any:
    """The address so many bytes further on."""
    return builder.add(address, I64(num_bytes))


def element(builder: Any, address: Any, index: Any, stride_bytes: int) -> Any:
    """The address of an element of an array."""
    return builder.add(address, builder.mul(index, I64(stride_bytes)))


def splat(builder: Any, scalar: Any) -> Any:
    """A vector with the scalar in every lane."""
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(VI32, [0] * LANES))


def floats(value: float) -> Any:
    """A constant vector."""
    return ir.Constant(VF32, [value] * LANES)


def ints(value: int) -> Any:
    """A constant vector."""
    return ir.Constant(VI32, [value] * LANES)


def call(builder: Any, name: str, result: Any, args: Sequence[Any], flags: Sequence[str] = ()) -> Any:
    """Call one of LLVM's own functions."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args, fastmath=flags)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """A · b + c, lane by lane."""
    return call(builder, "llvm.fma.v16f32", VF32, [a, b, c])


def dot(builder: Any, total: Any, left: Any, right: Any, size: int) -> Any:
    """Total + left · right, word by word, for words that hold numbers of `size` bytes."""
    if size == WORD_BYTES:
        return multiply_add(builder, builder.bitcast(left, VF32), builder.bitcast(right, VF32), total)
    if has_feature("avx512bf16"):
        pairs = [builder.bitcast(words, _VBF32) for words in (left, right)]
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VF32, [total, *pairs])
    for half in (low_halves, _high_halves):
        total = multiply_add(builder, half(builder, left), half(builder, right), total)
    return total


def floats_at(builder: Any, address: Any, size: int) -> Any:
    """16 numbers of `size` bytes, float32 or bf16, as float32."""
    if size == WORD_BYTES:
        return load(builder, address, VF32, size)
    return low_halves(builder, builder.zext(load(builder, address, VI16, size), VI32))


def low_halves(builder: Any, words: Any) -> Any:
    """The bf16 in the lower half of each word, as float32."""
    return builder.bitcast(builder.shl(words, ints(16)), VF32)


def _high_halves(builder: Any, words: Any) -> Any:
    return builder.bitcast(builder.and_(words, ints(0xFFFF0000)), VF32)


def to_bf16(builder: Any, vector: Any) -> Any:
    """Float32 to bf16, to nearest, ties to even."""
    if has_feature("avx512bf16"):
        rounded = call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", _VBF16, [vector])
        return builder.bitcast(rounded, VI16)
    bits = builder.bitcast(vector, VI32)
    is_odd = builder.and_(builder.lshr(bits, ints(16)), ints(1))
    rounded = builder.add(bits, builder.add(is_odd, ints(0x7FFF)))
    return builder.trunc(builder.lshr(rounded, ints(16)), VI16)


def dot_bytes(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """Total + left · right in whole numbers, word by word; left holds bytes without a sign. Needs avx512vnni."""
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", VI32, [total, left, right])


def exp2(builder: Any, x: Any) -> Any:
    """2^x as 2^n · 2^f with n = round(x): exponent bits and a polynomial, 2e-7 relative; 0 below -126; NaN stays."""
    is_tiny = builder.fcmp_ordered("<", x, floats(-126.0))
    x = builder.select(builder.fcmp_ordered(">", x, floats(127.0)), floats(127.0), x)
    whole = call(builder, "llvm.rint.v16f32", VF32, [x])
    rest = builder.fsub(x, whole)
    result = floats(1.5353362e-4)
    for coefficient in (1.3398874e-3, 9.6184373e-3, 5.5503324e-2, 2.4022648e-1, 6.9314720e-1, 1.0):
        result = multiply_add(builder, result, rest, floats(coefficient))
    exponent = builder.shl(builder.fptosi(whole, VI32), ints(23))
    scaled = builder.bitcast(builder.add(builder.bitcast(result, VI32), exponent), VF32)
    return builder.select(is_tiny, floats(0.0), scaled)
