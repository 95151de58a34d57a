"""Products of some and many tokens with packed 4-bit weights on a Hopper card, as busy as its tensor cores can be kept.

A program's warps have tasks of their own. One has the copy engine fetch tiles ahead. Two groups of four dequantise the
weight's rows in registers and hand them to the tensor cores, 64 at a time, while 64 others are multiplied; where one
group waits, the other's work is there. Both share the tiles of tokens, so 256 rows of the weight cost one reading of
them. Written in Gluon, Triton's language of explicit layouts, which its interpreter does not know: only a card can tell
whether results are right. Contract: kernels/int4.py.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from threefold.kernels.int4 import PackedInt4
from threefold.kernels.triton.int4_results import add_splits
from threefold.kernels.triton.int4_wide_tables import NUM_MULTIPROCESSORS, WideSizes
from threefold.kernels.triton.int4_wide_tile import (
    add_chunk,
    loaded,
    place_of,
    rows_of,
    store_results,
    store_sums,
)

_MULTIPLYING, _FETCHING = gl.constexpr(240), gl.constexpr(24)
_REGISTERS = 168
"""Of a thread: as many as are left when both groups that multiply have theirs and the one that fetches has, and a third
of all when the program starts."""
_ALIGN_BYTES = 16
"""What the copy engine wants of rows in memory."""


@gluon.jit
def _fetch(x_desc, units_desc, buffers, barriers, work, NUM_OUTPUTS: gl.constexpr, NUM_CHUNKS: gl.constexpr,
           UNITS: gl.constexpr, IS_GATED: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr,
           X_STAGES: gl.constexpr, UNITS_STAGES: gl.constexpr):  # fmt: skip
    """One warp: everything that the program reads of tokens and units, as soon as there is a free place for it."""
    x_tiles, units_tiles = buffers
    x_full, x_empty, units_full, units_empty = barriers
    num_rows: gl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    num_items = work[3]
    count = 0  # chunks so far
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        tile, first_token, first_chunk, num_chunks, _ = place_of(item, work, NUM_CHUNKS, BLOCK_M)
        for number in range(first_chunk, first_chunk + num_chunks):
            place = count % UNITS_STAGES
            mbarrier.wait(units_empty.index(place), count // UNITS_STAGES & 1 ^ 1)
            mbarrier.expect(units_full.index(place), PARTS * 64 * UNITS * 2)
            for part in gl.static_range(PARTS):
                row = number * num_rows + rows_of(tile, part, NUM_OUTPUTS, IS_GATED, PARTS)
                tma.async_copy_global_to_shared(units_desc, [row, 0], units_full.index(place),
                                                units_tiles.index(place * PARTS + part))  # fmt: skip
            for quarter in gl.static_range(4):
                turn = count * 4 + quarter
                place = turn % X_STAGES
                mbarrier.wait(x_empty.index(place), turn // X_STAGES & 1 ^ 1)
                mbarrier.expect(x_full.index(place), BLOCK_M * UNITS * 2)
                tma.async_copy_global_to_shared(x_desc, [first_token, (number * 4 + quarter) * UNITS],
                                                x_full.index(place), x_tiles.index(place))  # fmt: skip
            count += 1


@gluon.jit
def _multiply(buffers, barriers, pointers, work, HALF: gl.constexpr, NUM_OUTPUTS: gl.constexpr,
              NUM_CHUNKS: gl.constexpr, UNITS: gl.constexpr, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr,
              IS_GATED: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, X_STAGES: gl.constexpr,
              UNITS_STAGES: gl.constexpr):  # fmt: skip
    """Four warps: one HALF of every tile's rows."""
    scale_zeros_ptr, bias_ptr, out_ptr, parts_ptr = pointers
    num_tokens, num_whole, _, num_items = work
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    each: gl.constexpr = PARTS // 2
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    count = 0  # chunks so far
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        tile, first_token, first_chunk, num_chunks, split = place_of(item, work, NUM_CHUNKS, BLOCK_M)
        first_a = rows_of(tile, HALF * each, NUM_OUTPUTS, IS_GATED, PARTS)
        first_b = rows_of(tile, HALF * each + each - 1, NUM_OUTPUTS, IS_GATED, PARTS)
        group = first_chunk * (4 * UNITS) // GROUP
        next_a = loaded(scale_zeros_ptr, group, first_a, NUM_OUTPUTS, IS_GATED, left)
        next_b = loaded(scale_zeros_ptr, group, first_b, NUM_OUTPUTS, IS_GATED, left)
        acc_a = gl.zeros((64, BLOCK_M), gl.float32, sums)
        acc_b = gl.zeros((64, BLOCK_M), gl.float32, sums)
        for number in range(first_chunk, first_chunk + num_chunks):
            acc_a, acc_b, next_a, next_b = add_chunk(
                acc_a, acc_b, next_a, next_b, first_a, first_b, number, count, buffers, barriers, scale_zeros_ptr, HALF,
                NUM_OUTPUTS, NUM_CHUNKS, UNITS, GROUP, IS_GATED, PARTS, X_STAGES, UNITS_STAGES, left, dtype,
            )  # fmt: skip
            count += 1
        if PARTS == 2:
            acc_a += acc_b
        if tile >= num_whole:
            store_sums(acc_a, acc_b, first_a, first_b, first_token, split, work, parts_ptr, NUM_OUTPUTS, IS_GATED,
                       PARTS, BLOCK_M, sums)  # fmt: skip
        else:
            store_results(acc_a, acc_b, first_a, first_b, first_token, bias_ptr, out_ptr, num_tokens, NUM_OUTPUTS,
                          HAS_BIAS, IS_GATED, PARTS, BLOCK_M, sums, dtype)  # fmt: skip


@gluon.jit(do_not_specialize=["num_tokens", "num_whole", "num_splits", "num_items"])
def wide(x_desc, units_desc, scale_zeros_ptr, bias_ptr, out_ptr, parts_ptr, num_tokens, num_whole, num_splits,
         num_items, NUM_OUTPUTS: gl.constexpr, NUM_CHUNKS: gl.constexpr, UNITS: gl.constexpr, GROUP: gl.constexpr,
         HAS_BIAS: gl.constexpr, IS_GATED: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr,
         X_STAGES: gl.constexpr, UNITS_STAGES: gl.constexpr):  # fmt: skip
    """Program: every so manieth item, which is a tile of rows times one of tokens, or a split of its inputs."""
    x_tiles = gl.allocate_shared_memory(x_desc.dtype, [X_STAGES, BLOCK_M, UNITS], x_desc.layout)
    units_tiles = gl.allocate_shared_memory(gl.int16, [UNITS_STAGES * PARTS, 64, UNITS], units_desc.layout)
    x_full = gl.allocate_shared_memory(gl.int64, [X_STAGES, 1], mbarrier.MBarrierLayout())
    x_empty = gl.allocate_shared_memory(gl.int64, [X_STAGES, 1], mbarrier.MBarrierLayout())
    units_full = gl.allocate_shared_memory(gl.int64, [UNITS_STAGES, 1], mbarrier.MBarrierLayout())
    units_empty = gl.allocate_shared_memory(gl.int64, [UNITS_STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(X_STAGES):
        mbarrier.init(x_full.index(stage), count=1)
        mbarrier.init(x_empty.index(stage), count=2)  # both groups of warps
    for stage in gl.static_range(UNITS_STAGES):
        mbarrier.init(units_full.index(stage), count=1)
        mbarrier.init(units_empty.index(stage), count=2)
    fence_async_shared()
    buffers = (x_tiles, units_tiles)
    barriers = (x_full, x_empty, units_full, units_empty)
    pointers = (scale_zeros_ptr, bias_ptr, out_ptr, parts_ptr)
    work = (num_tokens, num_whole, num_splits, num_items)
    gl.warp_specialize([
        (_multiply, (buffers, barriers, pointers, work, gl.constexpr(0), NUM_OUTPUTS, NUM_CHUNKS, UNITS, GROUP,
                     HAS_BIAS, IS_GATED, PARTS, BLOCK_M, X_STAGES, UNITS_STAGES)),
        (_multiply, (buffers, barriers, pointers, work, gl.constexpr(1), NUM_OUTPUTS, NUM_CHUNKS, UNITS, GROUP,
                     HAS_BIAS, IS_GATED, PARTS, BLOCK_M, X_STAGES, UNITS_STAGES)),
        (_fetch, (x_desc, units_desc, buffers, barriers, work, NUM_OUTPUTS, NUM_CHUNKS, UNITS, IS_GATED, PARTS, BLOCK_M,
                  X_STAGES, UNITS_STAGES)),
    ], [4, 1], [_MULTIPLYING, _FETCHING])  # fmt: skip


def can_be_wide(weight: PackedInt4, *, is_gated: bool) -> bool:
    """Whether the card has what the body needs, and rows of tokens and results lie where its copy engine wants them."""
    num_outputs = weight.num_outputs // 2 if is_gated else weight.num_outputs
    is_hopper = torch.cuda.get_device_capability(weight.units.device) == (9, 0)
    return is_hopper and weight.num_inputs * 2 % _ALIGN_BYTES == 0 and num_outputs % 8 == 0


def wide_body(
    weight: PackedInt4, bias: torch.Tensor | None, *, is_gated: bool
) -> Callable[[torch.Tensor, WideSizes], torch.Tensor]:
    """A function of x [num_tokens, in] and how to cut it, to [num_tokens, out], or half as many where gated."""
    num_chunks, num_rows, num_units = weight.units.shape
    num_outputs = num_rows // 2 if is_gated else num_rows
    swizzled = gl.NVMMASharedLayout(swizzle_byte_width=num_units * 2, element_bitwidth=16)
    units = TensorDescriptor.from_tensor(weight.units.view(-1, num_units), [64, num_units], swizzled)
    beside = {"NUM_OUTPUTS": num_outputs, "HAS_BIAS": bias is not None, "IS_GATED": is_gated}
    inputs = {
        "NUM_CHUNKS": num_chunks,
        "UNITS": num_units,
        "GROUP": min(weight.group_size, num_chunks * num_units * 4),
    }
    given_bias = weight.scale_zeros if bias is None else bias

    def multiply(x: torch.Tensor, sizes: WideSizes) -> torch.Tensor:
        x = x.contiguous()
        num_tokens = x.shape[0]
        num_whole, num_split = sizes.num_tiles(num_tokens, num_rows)
        x_stages, units_stages = sizes.stages
        out = x.new_empty((num_tokens, num_outputs))
        num_sums = max(0, num_rows - sizes.num_whole * sizes.block_rows)
        parts = x.new_empty((sizes.num_splits, num_tokens, num_sums), dtype=torch.float32)
        num_items = num_whole + num_split * sizes.num_splits
        wide[(min(num_items, NUM_MULTIPROCESSORS),)](
            TensorDescriptor.from_tensor(x, [sizes.block_tokens, num_units], swizzled),
            units,
            weight.scale_zeros,
            given_bias,
            out,
            parts,
            num_tokens,
            sizes.num_whole,
            sizes.num_splits,
            num_items,
            PARTS=sizes.block_rows // 64,
            BLOCK_M=sizes.block_tokens,
            X_STAGES=x_stages,
            UNITS_STAGES=units_stages,
            num_warps=4,
            maxnreg=_REGISTERS,
            **inputs,
            **beside,
        )
        if num_split:
            add_splits(parts, given_bias, out, beside)
        return out

    return multiply
