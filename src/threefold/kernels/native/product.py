"""Products of a few tokens with weights in the order that oneDNN keeps them, at the speed of memory.

    packed weight   [out / 64, in / 32, 16, 64, 2] bf16        64 outputs side by side, their inputs in pairs

Few tokens cost what reading the weights costs; this body reads them once, in order. A token's result is the same number
however many tokens stand beside it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import cgutils, types

from threefold.kernels.native import llvm, vector
from threefold.kernels.native.llvm import LANES, LANES_BYTES, WORD_BYTES
from threefold.kernels.native.team import Run, fingerprint
from threefold.kernels.native.tiles import add_products, new_totals
from threefold.kernels.native.vector import define, instruction, peek_i64

BLOCK_OUTPUTS = 64
_GROUPS = BLOCK_OUTPUTS // LANES
_ROW_BYTES = _GROUPS * LANES_BYTES
_UNROLL = 8
_NUM_ARGS = 7
_SIZE = 2


@instruction
def product_tile(
    _context: Any,
    _x: Any,
    _x_bytes: Any,
    _weights: Any,
    _num_words: Any,
    _bias: Any,
    _out: Any,
    _out_bytes: Any,
    rows: Any,
) -> Any:
    """out[r, 0..64] = x[r] · a block of weights + bias for `rows` (a constant) rows, x_bytes and out_bytes apart."""
    num_rows = rows.literal_value

    def emit(  # noqa: PLR0917 (an op's operands)
        builder: Any,
        x: Any,
        x_bytes: Any,
        weights: Any,
        num_words: Any,
        bias: Any,
        out: Any,
        out_bytes: Any,
        _rows: Any,
    ) -> None:
        totals = new_totals(builder, num_rows * _GROUPS)
        with cgutils.for_range(builder, builder.sdiv(num_words, llvm.I64(_UNROLL))) as loop:
            words = llvm.element(builder, x, loop.index, _UNROLL * WORD_BYTES)
            starts = [builder.add(words, builder.mul(x_bytes, llvm.I64(r))) for r in range(num_rows)]
            block = llvm.element(builder, weights, loop.index, _UNROLL * _ROW_BYTES)
            for word in range(_UNROLL):
                scalars = [llvm.offset(builder, start, word * WORD_BYTES) for start in starts]
                vectors = [llvm.offset(builder, block, word * _ROW_BYTES + g * LANES_BYTES) for g in range(_GROUPS)]
                add_products(builder, totals, scalars, vectors, _SIZE)
        for i, total in enumerate(totals):
            row, group = divmod(i, _GROUPS)
            start = builder.add(out, builder.mul(out_bytes, llvm.I64(row)))
            skip = group * LANES * _SIZE
            halves = builder.zext(llvm.load(builder, llvm.offset(builder, bias, skip), llvm.VI16, _SIZE), llvm.VI32)
            result = builder.fadd(builder.load(total), llvm.low_halves(builder, halves))
            llvm.store(builder, llvm.to_bf16(builder, result), llvm.offset(builder, start, skip), _SIZE)

    return define(types.void, [types.int64] * 7 + [rows], emit)


@cache
def product_body() -> Run:
    """run(num_items, x, weights, bias, out, num_tokens, inputs, outputs): items are blocks of 64 outputs.

    x: bf16 [num_tokens, inputs]; bias: bf16 [outputs]; out: bf16 [num_tokens, outputs]; rows one behind another.
    """
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        x, weights, bias, out = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 32), peek_i64(args + 40)
        num_tokens, x_bytes, out_bytes = peek_i64(args + 48), peek_i64(args + 56) * _SIZE, peek_i64(args + 64) * _SIZE
        num_words = x_bytes // WORD_BYTES
        while True:
            item = vector.take_next(args)
            if item >= peek_i64(args + 8):
                return
            block, skip = weights + item * num_words * _ROW_BYTES, item * BLOCK_OUTPUTS * _SIZE
            done = 0
            while done < num_tokens:
                rows, place = x + done * x_bytes, out + done * out_bytes + skip
                if num_tokens - done >= 4:
                    product_tile(rows, x_bytes, block, num_words, bias + skip, place, out_bytes, 4)
                    done += 4
                elif num_tokens - done >= 2:
                    product_tile(rows, x_bytes, block, num_words, bias + skip, place, out_bytes, 2)
                    done += 2
                else:
                    product_tile(rows, x_bytes, block, num_words, bias + skip, place, out_bytes, 1)
                    done += 1

    return Run(body, _NUM_ARGS)
