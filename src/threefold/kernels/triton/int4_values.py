"""What both bodies of packed 4-bit weights do with a tile: values to numbers, and what to take off and multiply with.

Two values become two numbers of 16 bits with one and-or: their bits are set into the mantissa of a power of two. The
order of units and of scales is kernels/int4.py's.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

import triton
import triton.language as tl


def _spread(place: int, offset_bits: str) -> str:
    """Two units in one register to a pair of numbers: the values at one place, 0 the lowest."""
    shifted = f"shr.u32 t, $1, {4 * place};"
    return f"{{ .reg .b32 t; {shifted} lop3.b32 $0, t, 0x000F000F, {offset_bits}, 0xEA; }}"  # (t & mask) | bits


_SPREAD_BF16 = tl.constexpr(tuple(_spread(place, "0x43004300") for place in range(4)))
_SPREAD_FP16 = tl.constexpr(tuple(_spread(place, "0x64006400") for place in range(4)))


@triton.jit
def spread(units, PLACE: tl.constexpr, dtype: tl.constexpr):
    """A tile of units to the numbers at one place of each, an offset plus a value (kernels/int4.py: OFFSETS)."""
    text: tl.constexpr = _SPREAD_BF16[PLACE] if dtype == tl.bfloat16 else _SPREAD_FP16[PLACE]
    return tl.inline_asm_elementwise(text, "=r,r", [units], dtype=tl.int16, is_pure=True, pack=2).to(
        dtype, bitcast=True
    )


@triton.jit
def scale_and_zero(scale_zeros_ptr, group, outputs, is_output, NUM_ROWS: tl.constexpr, dtype: tl.constexpr):
    """Of one group, [BLOCK_N, 1] each."""
    both = tl.load(scale_zeros_ptr + group * NUM_ROWS + outputs, mask=is_output, other=0)[:, None]
    return both.to(tl.int16).to(dtype, bitcast=True), (both >> 16).to(tl.int16).to(dtype, bitcast=True)


@triton.jit
def settled(acc):
    """The same sums, looked at: so a step of the loop ends with the tensor cores done. Sums still under way at its end
    would make the compiler wait after every single instruction of theirs.
    """
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [acc], dtype=tl.float32, is_pure=True, pack=1)
