"""RMS norm of rows, with the residual added on the way. Reads and writes every number once."""

from __future__ import annotations

from functools import cache

import numpy as np

from threefold.kernels.native import vector
from threefold.kernels.native.llvm import LANES
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.vector import inlined, peek_f32, peek_i64

ROWS_PER_ITEM = 8
_NUM_ARGS = 7


@inlined
def inverse_rms(row: int, num: int, eps: float, size: int) -> float:
    """1 / sqrt(mean of squares + eps) of `num` numbers, a multiple of 16."""
    squares = vector.splat(np.float32(0.0))
    for i in range(0, num, LANES):
        numbers = vector.load(row + i * size, size)
        squares = squares + numbers * numbers
    inverse: float = np.float32(1.0) / np.sqrt(vector.lane_sum(squares) / np.float32(num) + eps)
    return inverse


@inlined
def _add(row: int, residual: int, width: int, size: int) -> None:
    for i in range(0, width * size, LANES * size):
        vector.store(residual + i, vector.load(residual + i, size) + vector.load(row + i, size), size)


@inlined
def _normalise(  # noqa: PLR0917 (copied in place)
    row: int, weight: int, out: int, width: int, eps: float, size: int
) -> None:
    factor = vector.splat(inverse_rms(row, width, eps, size))
    for i in range(0, width * size, LANES * size):
        vector.store(out + i, vector.load(row + i, size) * factor * vector.load(weight + i, size), size)


@cache
def norm_body(size: int) -> Run:
    """run(num_items, x, residual or 0, weight, out, num_rows, width, eps): items are ROWS_PER_ITEM rows.

    x, out: [num_rows, width] numbers of `size` bytes, rows one behind another; width a multiple of 16. With a residual,
    residual += x, and the norm is of the residual. eps: address of a float32.
    """
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        x, residual, weight = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32)
        out, num_rows, width = peek_i64(args + 40), peek_i64(args + 48), peek_i64(args + 56)
        eps = peek_f32(peek_i64(args + 64))
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            for row in range(item * ROWS_PER_ITEM, min((item + 1) * ROWS_PER_ITEM, num_rows)):
                start = row * width * size
                if residual == 0:
                    _normalise(x + start, weight, out + start, width, eps, size)
                else:
                    _add(x + start, residual + start, width, size)
                    _normalise(residual + start, weight, out + start, width, eps, size)

    return Run(body, _NUM_ARGS)
