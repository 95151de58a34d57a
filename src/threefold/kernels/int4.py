"""Products with weights of four bits, packed (AWQ, GPTQ and compressed-tensors bring theirs into this form).

Contract: y = x · weightᵀ + bias with weight[o, i] = (value[o, i] - zero[o, g]) · scale[o, g] and g the group that input
i lies in; gated as in kernels/linear.py. The weight is rounded to the activations' type once at most, sums are float32.

On a card weights stay packed, in the order in which the bodies read them:

    units        [chunks, out, units]  int16   unit u of a chunk holds inputs u, u + units, u + 2 units, u + 3 units
    scale_zeros  [groups, out]         int32   scale in the low half, offset + zero in the high half, as dtype's bits

so one program's part of a chunk is one piece of memory, a quarter of a chunk comes out of whole tiles of units by a
shift, and lies in one group. On a CPU that kernels/packed.py serves they become its records; elsewhere they are
dequantised once and kernels/linear.py multiplies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from threefold.kernels import linear
from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.linear import Product
from threefold.kernels.packed import has_packed_products, packed_product
from threefold.kernels.records import RECORD_INPUTS, RECORD_OUTPUTS, Form, PackedWeight, fits_records

VALUES_PER_UNIT = 4
_MIDDLE = 8
_WITH_MINIMA = Form(bits=4, zero=0, has_minimum=True)
_WIDE_UNITS, _NARROW_UNITS = 64, 32
"""Units of a chunk: as many as the shortest group allows, and no more than 64."""
OFFSETS = {torch.bfloat16: 128.0, torch.float16: 1024.0}
"""What a type's number is whose lowest mantissa bits are a value, above which there is the value alone: added for free
by setting bits, and taken off together with the zero."""


class Int4Weight(NamedTuple):
    """A weight as checkpoints mean it."""

    values: torch.Tensor  # [out, in] uint8, 0..15
    scales: torch.Tensor  # [out, groups] floating
    zeros: torch.Tensor  # [out, groups] uint8, 0..16
    group_size: int


class PackedInt4(NamedTuple):
    """A weight as the bodies on a card read it."""

    units: torch.Tensor  # [chunks, out, units] int16
    scale_zeros: torch.Tensor  # [groups, out] int32
    group_size: int
    num_inputs: int
    dtype: torch.dtype

    @property
    def num_outputs(self) -> int:
        """Rows of the weight."""
        return self.units.shape[1]

    @property
    def num_units(self) -> int:
        """Units of a chunk."""
        return self.units.shape[2]


def int4_product(
    weight: Int4Weight, bias: torch.Tensor | None, *, is_gated: bool = False, dtype: torch.dtype
) -> Product:
    """The fastest body for this weight: a function of x [num_tokens, in]. Keep no reference to the weight."""
    (num_outputs, num_inputs), device = weight.values.shape, weight.values.device
    if device.type == "cuda" and dtype in OFFSETS:
        return _on_card(weight, bias, is_gated=is_gated, dtype=dtype)
    if _fits_records(num_outputs, num_inputs, weight.group_size, dtype, device):
        return packed_product(records(weight), bias, is_gated=is_gated, dtype=dtype)
    return linear.product(dequantize(weight).to(dtype), bias, is_gated=is_gated)


def kept_bytes(num_outputs: int, num_inputs: int, group_size: int, dtype: torch.dtype, device: torch.device) -> int:
    """Memory that a product holds, at most: whether a weight has minima on a CPU shows when it is there."""
    if device.type == "cuda" and dtype in OFFSETS:
        return packed_bytes(num_outputs, num_inputs, group_size)
    if _fits_records(num_outputs, num_inputs, group_size, dtype, device):
        return num_outputs * num_inputs // (RECORD_OUTPUTS * RECORD_INPUTS) * _WITH_MINIMA.record_bytes
    return num_outputs * num_inputs * dtype.itemsize


def _on_card(weight: Int4Weight, bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype) -> Product:
    from threefold.kernels.triton.int4 import tiled_body
    from threefold.kernels.triton.int4_dequantize import dequantizing_body
    from threefold.kernels.triton.int4_tables import int4_sizes
    from threefold.kernels.triton.int4_wide import can_be_wide, wide_body
    from threefold.kernels.triton.int4_wide_tables import WideSizes

    packed = pack(weight, dtype)
    tiled = tiled_body(packed, bias, is_gated=is_gated)
    wide = wide_body(packed, bias, is_gated=is_gated) if can_be_wide(packed, is_gated=is_gated) else None
    many = dequantizing_body(packed, bias, is_gated=is_gated)
    num_chunks, num_rows, _ = packed.units.shape

    def multiply(x: torch.Tensor) -> torch.Tensor:
        sizes = int4_sizes(x.shape[0], num_rows, num_chunks, is_gated=is_gated, can_be_wide=wide is not None)
        if isinstance(sizes, WideSizes):
            assert wide is not None
            return wide(x, sizes)
        return many(x) if sizes is None else tiled(x, sizes)

    return multiply


def int4_product_reference(
    x: torch.Tensor, weight: Int4Weight, bias: torch.Tensor | None = None, *, is_gated: bool = False
) -> torch.Tensor:
    """The contract in float32."""
    out = x.float() @ dequantize(weight).T
    if bias is not None:
        out = out + bias.float()
    return silu_mul_reference(out) if is_gated else out


def dequantize(weight: Int4Weight) -> torch.Tensor:
    """[out, in] float32."""
    num_outputs, num_groups = weight.scales.shape
    values = weight.values.view(num_outputs, num_groups, -1).float()
    values -= weight.zeros[..., None].float()
    values *= weight.scales[..., None].float()
    return values.view(num_outputs, -1)


def _fits_records(num_outputs: int, num_inputs: int, group_size: int, dtype: torch.dtype, device: torch.device) -> bool:
    is_whole = fits_records(num_outputs, num_inputs) and group_size % RECORD_INPUTS == 0
    return is_whole and has_packed_products(dtype, device)


def records(weight: Int4Weight) -> PackedWeight:
    """The order of the bodies on a CPU; zeros that are all 8 cost nothing there."""
    repeats = weight.group_size // RECORD_INPUTS
    scales = weight.scales.half().repeat_interleave(repeats, dim=1)
    if bool((weight.zeros == _MIDDLE).all()):
        return PackedWeight(Form(bits=4, zero=_MIDDLE, has_minimum=False), weight.values, scales, None)
    minima = (weight.scales.float() * -weight.zeros.float()).half().repeat_interleave(repeats, dim=1)
    return PackedWeight(_WITH_MINIMA, weight.values, scales, minima)


def packed_bytes(num_outputs: int, num_inputs: int, group_size: int) -> int:
    """Memory that a packed weight takes."""
    num_chunks = -(-num_inputs // (VALUES_PER_UNIT * _units_of_chunk(num_inputs, group_size)))
    num_units = num_chunks * _units_of_chunk(num_inputs, group_size)
    return num_outputs * (num_units * 2 + -(-num_units * VALUES_PER_UNIT // group_size) * 4)


def pack(weight: Int4Weight, dtype: torch.dtype) -> PackedInt4:
    """The order of the bodies on a card, for activations of `dtype`."""
    num_outputs, num_inputs = weight.values.shape
    num_units = _units_of_chunk(num_inputs, weight.group_size)
    num_chunks = -(-num_inputs // (VALUES_PER_UNIT * num_units))
    padded_inputs = num_chunks * VALUES_PER_UNIT * num_units
    values = torch.nn.functional.pad(weight.values, (0, padded_inputs - num_inputs))
    quarters = values.view(num_outputs, num_chunks, VALUES_PER_UNIT, num_units)
    units = torch.zeros((num_outputs, num_chunks, num_units), dtype=torch.int16, device=values.device)
    for place in range(VALUES_PER_UNIT):
        units |= quarters[:, :, place].to(torch.int16) << (4 * place)
    return PackedInt4(
        units=units.transpose(0, 1).contiguous(),
        scale_zeros=_scale_zeros(weight, padded_inputs, dtype),
        group_size=weight.group_size,
        num_inputs=num_inputs,
        dtype=dtype,
    )


def _units_of_chunk(num_inputs: int, group_size: int) -> int:
    """A quarter of a chunk lies in one group; inputs are padded to whole chunks."""
    is_wide = group_size % _WIDE_UNITS == 0 and num_inputs % (VALUES_PER_UNIT * _WIDE_UNITS) == 0
    return _WIDE_UNITS if is_wide else _NARROW_UNITS


def _scale_zeros(weight: Int4Weight, padded_inputs: int, dtype: torch.dtype) -> torch.Tensor:
    padding = (0, -(-padded_inputs // weight.group_size) - weight.scales.shape[1])
    scales = torch.nn.functional.pad(weight.scales.to(dtype), padding)
    zeros = torch.nn.functional.pad(weight.zeros.to(dtype), padding) + OFFSETS[dtype]
    both = torch.stack([scales.T, zeros.T], dim=-1).contiguous()  # little-endian: the scale is the low half
    return both.view(torch.int32).squeeze(-1)
