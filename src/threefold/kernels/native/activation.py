"""SiLU of the gate times the up projection, rows of a gated MLP."""

from __future__ import annotations

from functools import cache

import numpy as np

from threefold.kernels.native import vector
from threefold.kernels.native.llvm import LANES
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.vector import F32x16, inlined, peek_i64

ROWS_PER_ITEM = 2
_NUM_ARGS = 4
_LOG2_E = 1.4426950408889634


@inlined
def silu_mul(gate: F32x16, up: F32x16) -> F32x16:
    """SiLU of a gate times the other, lane by lane."""
    swish = gate / (vector.splat(np.float32(1.0)) + vector.exp2(gate * vector.splat(np.float32(-_LOG2_E))))
    product: F32x16 = swish * up
    return product


@inlined
def _silu_mul_row(gate: int, up: int, out: int, width: int, size: int) -> None:
    for i in range(0, width * size, LANES * size):
        vector.store(out + i, silu_mul(vector.load(gate + i, size), vector.load(up + i, size)), size)


@cache
def silu_mul_body(size: int) -> Run:
    """run(num_items, gate_up, out, num_rows, width): items are ROWS_PER_ITEM rows.

    gate_up: [num_rows, 2 * width], out: [num_rows, width], numbers of `size` bytes; width a multiple of 16.
    """
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        gate_up, out = peek_i64(args + 16), peek_i64(args + 24)
        num_rows, width = peek_i64(args + 32), peek_i64(args + 40)
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            for row in range(item * ROWS_PER_ITEM, min((item + 1) * ROWS_PER_ITEM, num_rows)):
                gate = gate_up + row * 2 * width * size
                _silu_mul_row(gate, gate + width * size, out + row * width * size, width, size)

    return Run(body, _NUM_ARGS)
