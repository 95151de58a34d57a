"""What compiled bodies see: a numba type for 16 float32 lanes, and memory by address.

Knows nothing about models. Numba has no bf16 and no vector type, and its loop vectoriser cannot be told to keep things
in registers, so the bodies that matter spell their vectors out with these functions. They work inside compiled bodies
only.

Addresses are int64. Numbers in memory are told apart by their size in bytes, a constant: 4 = float32, 2 = bf16.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit
from numba.core import types
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from threefold.kernels.native import llvm
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES

_Function = TypeVar("_Function", bound=Callable[..., Any])


def inlined(function: _Function) -> _Function:
    """Mark a function for compiled bodies; its code is copied into them, so that constants stay constants."""
    compiled: _Function = njit(inline="always")(function)
    return compiled


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function (typing context, *argument types) that returns `define(...)` as one instruction of bodies."""
    made: Callable[..., Any] = intrinsic(prefer_literal=True)(function)
    return made


def define(result: Any, params: Sequence[Any], emit: Callable[..., Any]) -> tuple[Any, Any]:
    """An instruction's types, and the LLVM for it from `emit(builder, *values)`."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = emit(builder, *args)
        return context.get_dummy_value() if value is None else value

    return result(*params), codegen


class F32x16(types.Type):
    """Numba's type for 16 float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


f32x16 = F32x16()


class _F32x16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, llvm.VF32)


register_model(F32x16)(_F32x16Model)


def _register_operator(operation: Any, name: str) -> None:
    cases = [signature(f32x16, f32x16, f32x16)]
    infer_global(operation)(type(f"_{name}", (ConcreteTemplate,), {"cases": cases}))

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, name)(*args, flags=llvm.FAST)

    lower_builtin(operation, f32x16, f32x16)(lower)


_register_operator(operator.add, "fadd")
_register_operator(operator.sub, "fsub")
_register_operator(operator.mul, "fmul")
_register_operator(operator.truediv, "fdiv")


@instruction
def splat(_context: Any, _scalar: Any) -> Any:
    """A vector with the float32 scalar in every lane."""
    return define(f32x16, [types.float32], llvm.splat)


@instruction
def first_lane(_context: Any, _vector: Any) -> Any:
    """The number in lane 0."""
    return define(types.float32, [f32x16], lambda builder, vector: builder.extract_element(vector, llvm.I32(0)))


@instruction
def lane_sum(_context: Any, _vector: Any) -> Any:
    """Sum over the lanes, as a tree."""

    def emit(builder: Any, vector: Any) -> Any:
        return llvm.call(builder, "llvm.vector.reduce.fadd.v16f32", llvm.F32, [llvm.F32(0.0), vector], llvm.FAST)

    return define(types.float32, [f32x16], emit)


@instruction
def lane_max(_context: Any, _vector: Any) -> Any:
    """Largest lane."""
    name = "llvm.vector.reduce.fmax.v16f32"
    return define(types.float32, [f32x16], lambda builder, vector: llvm.call(builder, name, llvm.F32, [vector]))


@instruction
def larger(_context: Any, _left: Any, _right: Any) -> Any:
    """Lane by lane, the larger of two; a NaN on the left stays."""

    def emit(builder: Any, left: Any, right: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", left, right), right, left)

    return define(f32x16, [f32x16, f32x16], emit)


@instruction
def finite_or_zero(_context: Any, _vector: Any) -> Any:
    """Zero where a lane is infinite or NaN."""

    def emit(builder: Any, vector: Any) -> Any:
        is_finite = builder.fcmp_ordered("==", builder.fsub(vector, vector), llvm.floats(0.0))
        return builder.select(is_finite, vector, llvm.floats(0.0))

    return define(f32x16, [f32x16], emit)


@instruction
def exp2(_context: Any, _vector: Any) -> Any:
    """Two to the power of each lane, see llvm.exp2."""
    return define(f32x16, [f32x16], llvm.exp2)


@instruction
def keep_lanes(_context: Any, _vector: Any, _start: Any, _stop: Any, _other: Any) -> Any:
    """The vector's lanes in [start, stop), `other` elsewhere; start and stop may lie outside 0..16."""

    def emit(builder: Any, vector: Any, start: Any, stop: Any, other: Any) -> Any:
        lanes = ir.Constant(llvm.VI32, list(range(LANES)))
        first, end = (llvm.splat(builder, builder.trunc(bound, llvm.I32)) for bound in (start, stop))
        is_in = builder.and_(builder.icmp_signed(">=", lanes, first), builder.icmp_signed("<", lanes, end))
        return builder.select(is_in, vector, llvm.splat(builder, other))

    return define(f32x16, [f32x16, types.int64, types.int64, types.float32], emit)


@instruction
def load(_context: Any, _address: Any, size: Any) -> Any:
    """16 numbers of `size` bytes as float32."""
    num_bytes = size.literal_value

    def emit(builder: Any, address: Any, _size: Any) -> Any:
        return llvm.floats_at(builder, address, num_bytes)

    return define(f32x16, [types.int64, size], emit)


@instruction
def store(_context: Any, _address: Any, _vector: Any, size: Any) -> Any:
    """Write 16 lanes as numbers of `size` bytes."""
    num_bytes = size.literal_value

    def emit(builder: Any, address: Any, vector: Any, _size: Any) -> None:
        llvm.store(builder, vector if num_bytes == WORD_BYTES else llvm.to_bf16(builder, vector), address, num_bytes)

    return define(types.void, [types.int64, f32x16, size], emit)


def _access(kind: Any, numba_type: Any, align: int) -> tuple[Callable[[int], Any], Callable[[int, Any], None]]:
    def peek(_context: Any, _address: Any) -> Any:
        return define(numba_type, [types.int64], lambda builder, address: llvm.load(builder, address, kind, align))

    def poke(_context: Any, _address: Any, _value: Any) -> Any:
        def emit(builder: Any, address: Any, value: Any) -> None:
            llvm.store(builder, value, address, align)

        return define(types.void, [types.int64, numba_type], emit)

    return intrinsic(peek), intrinsic(poke)


peek_i16, poke_i16 = _access(llvm.I16, types.int16, 2)
peek_i32, poke_i32 = _access(llvm.I32, types.int32, 4)
peek_i64, poke_i64 = _access(llvm.I64, types.int64, 8)
peek_f32, poke_f32 = _access(llvm.F32, types.float32, 4)


@instruction
def peek_f16(_context: Any, _address: Any) -> Any:
    """The float16 there, as float32."""

    def emit(builder: Any, address: Any) -> Any:
        return builder.fpext(llvm.load(builder, address, ir.HalfType(), 2), llvm.F32)

    return define(types.float32, [types.int64], emit)


def _changed(builder: Any, address: Any, operation: str, number: Any, order: str) -> Any:
    """Change the int64 at an address, as one step among all threads; what it was."""
    return builder.atomic_rmw(operation, builder.inttoptr(address, llvm.I64.as_pointer()), number, order)


@instruction
def take_next(_context: Any, _address: Any) -> Any:
    """Add one to the int64 there, as one step among all threads; returns what it was."""

    def emit(builder: Any, address: Any) -> Any:
        return _changed(builder, address, "add", llvm.I64(1), "acq_rel")

    return define(types.int64, [types.int64], emit)


@instruction
def peek_shared(_context: Any, _address: Any) -> Any:
    """The int64 there, which other threads add to, and with it all that they wrote before they did."""

    def emit(builder: Any, address: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(address, llvm.I64.as_pointer()), "seq_cst", 8)

    return define(types.int64, [types.int64], emit)


@instruction
def add_shared(_context: Any, _address: Any, _number: Any) -> Any:
    """Add to the int64 there, in one order for all threads and all such numbers; returns what it was."""

    def emit(builder: Any, address: Any, number: Any) -> Any:
        return _changed(builder, address, "add", number, "seq_cst")

    return define(types.int64, [types.int64, types.int64], emit)


@instruction
def take_shared(_context: Any, _address: Any) -> Any:
    """The int64 there, in the order of `add_shared`; leaves zero."""

    def emit(builder: Any, address: Any) -> Any:
        return _changed(builder, address, "xchg", llvm.I64(0), "seq_cst")

    return define(types.int64, [types.int64], emit)


@instruction
def pause(_context: Any) -> Any:
    """Tell the processor that this thread waits for another."""

    def emit(builder: Any) -> None:
        if llvm.has_feature("sse2"):
            llvm.call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])

    return define(types.void, [], emit)


@instruction
def call_with(_context: Any, _function: Any, _argument: Any) -> Any:
    """Call the C function at an address with an address; returns its int."""

    def emit(builder: Any, function: Any, argument: Any) -> Any:
        kind = ir.FunctionType(llvm.I32, [llvm.I64])
        return builder.call(builder.inttoptr(function, kind.as_pointer()), [argument])

    return define(types.int32, [types.int64, types.int64], emit)


@instruction
def call_body(_context: Any, _body: Any, _args: Any) -> Any:
    """Run the compiled body at an address."""

    def emit(builder: Any, body: Any, args: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [llvm.I64])
        builder.call(builder.inttoptr(body, kind.as_pointer()), [args])

    return define(types.void, [types.int64, types.int64], emit)


@instruction
def stack_bytes(_context: Any, num_bytes: Any) -> Any:
    """Address of so many bytes of the body's own stack, on a cache line's start."""
    count = num_bytes.literal_value

    def emit(builder: Any, _num_bytes: Any) -> Any:
        with builder.goto_entry_block():  # where it is made once, not once a loop
            buffer = builder.alloca(ir.ArrayType(llvm.I8, count))
        buffer.align = LANES_BYTES
        return builder.ptrtoint(buffer, llvm.I64)

    return define(types.int64, [num_bytes], emit)
