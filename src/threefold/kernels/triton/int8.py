"""Products with an int8 table, whose values are widened in registers; activations are left as they are.

Few tokens go through the body of FP8 weights, whose warps divide the inputs: it reads the table as fast as memory gives
it. For more, rows are the tall operand of the tensor cores and tokens the narrow one: a tile of the table is widened
once for all tokens of a program, and goes into the product without a detour. Contract: kernels/int8.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.int8 import Int8Table
from threefold.kernels.linear import Product
from threefold.kernels.triton.fp8 import few_tokens_fp8_body, widened
from threefold.kernels.triton.fp8_tables import TileSizes
from threefold.kernels.triton.int8_tables import MAX_FEW_TOKENS_INT8, int8_few_sizes, int8_sizes


@triton.jit(do_not_specialize=["num_tokens"])
def tile_int8(x_ptr, table_ptr, scales_ptr, out_ptr, num_tokens, NUM_ROWS: tl.constexpr, WIDTH: tl.constexpr,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Program: BLOCK_N rows of the table times BLOCK_M tokens."""
    dtype = x_ptr.dtype.element_ty
    rows = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tokens = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    is_row, is_token = rows < NUM_ROWS, tokens < num_tokens
    x_rows = x_ptr + tokens[:, None] * WIDTH
    table_rows = table_ptr + rows.to(tl.int64)[:, None] * WIDTH
    acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    for start in tl.range(0, WIDTH, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_x, is_value = is_token[:, None], is_row[:, None]
        if WIDTH % BLOCK_K != 0:
            is_x, is_value = is_x & (inputs < WIDTH)[None, :], is_value & (inputs < WIDTH)[None, :]
        x = tl.load(x_rows + inputs[None, :], mask=is_x, other=0.0)
        values = tl.load(table_rows + inputs[None, :], mask=is_value, other=0)
        acc = tl.dot(widened(values, dtype), tl.trans(x), acc, input_precision="ieee")
    acc *= tl.load(scales_ptr + rows, mask=is_row, other=0.0)[:, None]
    is_result = is_row[:, None] & is_token[None, :]
    tl.store(out_ptr + tokens[None, :] * NUM_ROWS + rows[:, None], acc.to(dtype), mask=is_result)


def tile_int8_body(table: Int8Table) -> Callable[[torch.Tensor, TileSizes], torch.Tensor]:
    """A function of x [num_tokens, width] and how to cut it, right for any number of tokens, to [num_tokens, rows]."""
    num_rows, width = table.values.shape

    def multiply(x: torch.Tensor, sizes: TileSizes) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        out = x.new_empty((num_tokens, num_rows))
        # Tokens first, so that a tile of the table is read by all at once.
        grid = (triton.cdiv(num_tokens, sizes.block_tokens), triton.cdiv(num_rows, sizes.block_rows))
        tile_int8[grid](
            x,
            *table,
            out,
            num_tokens,
            NUM_ROWS=num_rows,
            WIDTH=width,
            BLOCK_M=sizes.block_tokens,
            BLOCK_N=sizes.block_rows,
            BLOCK_K=sizes.block_inputs,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
        )
        return out

    return multiply


def int8_body(table: Int8Table) -> Product:
    """A function of x [num_tokens, width] to [num_tokens, rows], by the body that is measured to be the faster one."""
    few = few_tokens_fp8_body(*table, None, None, is_gated=False)
    many = tile_int8_body(table)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        num_tokens = x.shape[0]
        if num_tokens <= MAX_FEW_TOKENS_INT8:
            return few(x, int8_few_sizes(len(table.values)))
        return many(x, int8_sizes(num_tokens))

    return multiply
