"""Packing of 4-bit weights for a card, and products with them where there is none."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.int4 import (
    OFFSETS,
    Int4Weight,
    dequantize,
    int4_product,
    int4_product_reference,
    kept_bytes,
    pack,
    packed_bytes,
    records,
)

CPU, CARD = torch.device("cpu"), torch.device("cuda")


def random_weight(num_outputs: int, num_inputs: int, group_size: int, zero: int | None = None) -> Int4Weight:
    torch.manual_seed(num_outputs + num_inputs)
    groups = num_inputs // group_size
    zeros = torch.randint(0, 17, (num_outputs, groups), dtype=torch.uint8)
    return Int4Weight(
        torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.uint8),
        (torch.rand(num_outputs, groups) + 0.5).half() / 16,
        zeros if zero is None else torch.full_like(zeros, zero),
        group_size,
    )


SHAPES = [(40, 512, 128), (32, 256, 64), (24, 160, 32), (16, 768, 768), (16, 96, 96)]


@pytest.mark.parametrize("dtype", list(OFFSETS))
@pytest.mark.parametrize(("num_outputs", "num_inputs", "group_size"), SHAPES)
def test_packed_memory_means_the_weight(num_outputs: int, num_inputs: int, group_size: int, dtype: torch.dtype) -> None:
    weight = random_weight(num_outputs, num_inputs, group_size)

    packed = pack(weight, dtype)

    num_units = packed.num_units
    places = torch.stack([(packed.units >> (4 * place)) & 15 for place in range(4)], dim=2)
    values = places.permute(1, 0, 2, 3).reshape(num_outputs, -1)[:, :num_inputs]
    assert torch.equal(values.to(torch.uint8), weight.values)
    scales = (packed.scale_zeros & 0xFFFF).to(torch.int16).view(dtype).T[:, : num_inputs // group_size]
    zeros = (packed.scale_zeros >> 16).to(torch.int16).view(dtype).T[:, : num_inputs // group_size] - OFFSETS[dtype]
    assert torch.equal(scales, weight.scales.to(dtype))
    assert torch.equal(zeros.to(torch.uint8), weight.zeros)
    assert group_size % num_units == 0  # a quarter of a chunk lies in one group
    held = packed.units.nbytes + packed.scale_zeros.nbytes
    assert packed_bytes(num_outputs, num_inputs, group_size) == held


def test_a_packed_weight_takes_little_more_than_half_a_byte_a_number() -> None:
    assert packed_bytes(4096, 4096, 128) / 4096**2 == pytest.approx(0.53125)
    assert kept_bytes(4096, 4096, 128, torch.bfloat16, CARD) == packed_bytes(4096, 4096, 128)
    assert kept_bytes(4096, 4096, 128, torch.float32, CARD) == 4096 * 4096 * 4
    assert kept_bytes(40, 40, 8, torch.bfloat16, CPU) == 40 * 40 * 2  # no whole records


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("num_outputs", "num_inputs", "group_size"), [(64, 256, 128), (32, 96, 96), (20, 40, 8)])
def test_products_on_a_cpu(
    num_outputs: int, num_inputs: int, group_size: int, dtype: torch.dtype, bound: float, has_bias: bool, is_gated: bool
) -> None:
    weight = random_weight(num_outputs, num_inputs, group_size)
    x = torch.randn(5, num_inputs).to(dtype)
    bias = torch.randn(num_outputs).to(dtype) if has_bias else None
    right = int4_product_reference(x, weight, bias, is_gated=is_gated)

    got = int4_product(weight, bias, is_gated=is_gated, dtype=dtype)(x)

    assert got.dtype == dtype
    assert (got.float() - right).norm() <= bound * right.norm()


@pytest.mark.parametrize("zero", [None, 8])
@pytest.mark.parametrize("group_size", [32, 128])
def test_records_mean_the_weight(group_size: int, zero: int | None) -> None:
    weight = random_weight(32, 128, group_size, zero)

    packed = records(weight)

    assert packed.form.has_minimum == (zero is None)
    torch.testing.assert_close(packed.rows(torch.arange(32)), dequantize(weight), rtol=0, atol=1e-3)


def test_a_value_less_its_zero_times_its_scale() -> None:
    weight = Int4Weight(
        torch.tensor([[0, 15, 3, 4]], dtype=torch.uint8),
        torch.tensor([[0.5, 2.0]]),
        torch.tensor([[8, 4]], dtype=torch.uint8),
        group_size=2,
    )

    assert dequantize(weight).tolist() == [[-4.0, 3.5, -2.0, 0.0]]
