"""Int8 tables in torch: how exact rows and products are, and what a CPU makes of them."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.fp8 import quantise_outputs
from threefold.kernels.int8 import (
    Int8Table,
    int8_lookup,
    int8_product,
    int8_reference,
    keeps_int8,
    lookup_reference,
    quantise_rows,
)

CPU = torch.device("cpu")


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return ((got.float() - right.float()).norm() / right.float().norm()).item()


def test_every_number_is_the_nearest_step() -> None:
    torch.manual_seed(0)
    plain = torch.randn(5000, 24) * torch.rand(5000, 1)
    table = quantise_rows(plain.bfloat16())
    steps = plain.bfloat16().float() / table.scales[:, None]
    assert table.values.dtype == torch.int8
    assert (steps - table.values).abs().max() <= 0.5 + 1e-4
    assert torch.equal(table.values.abs().amax(1), torch.full((5000,), 127, dtype=torch.int8))


def test_rows_of_zeros_stay_zeros() -> None:
    plain = torch.zeros(3, 16)
    plain[1, 4] = -0.25
    table = quantise_rows(plain)
    assert torch.equal(table.dequantised(torch.float32), plain)


def test_even_steps_are_more_exact_than_e4m3() -> None:
    torch.manual_seed(0)
    plain = torch.randn(300, 4096)
    error = relative(quantise_rows(plain).dequantised(torch.float32), plain)
    assert 0.005 < error < 0.012
    assert error < 0.5 * relative(quantise_outputs(plain).dequantised(torch.float32), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lookup_is_rounded_once(dtype: torch.dtype) -> None:
    table = quantise_rows(torch.randn(9, 16))
    ids = torch.tensor([8, 0, 8, 3])
    rows = int8_lookup(table, dtype)(ids)
    assert rows.dtype == dtype
    assert torch.equal(rows, (table.values.float() * table.scales[:, None]).to(dtype)[ids])
    assert torch.equal(rows, lookup_reference(table, ids, dtype))
    assert int8_lookup(table, dtype)(ids[:0]).shape == (0, 16)


def test_a_cpu_multiplies_with_rows_widened_beforehand() -> None:
    torch.manual_seed(0)
    table, x = quantise_rows(torch.randn(33, 16)), torch.randn(3, 16)
    torch.testing.assert_close(int8_product(table, torch.float32)(x), int8_reference(x, table))
    assert not keeps_int8(torch.bfloat16, CPU)
    assert keeps_int8(torch.bfloat16, torch.device("cuda")) and not keeps_int8(torch.float32, torch.device("cuda"))


def test_the_reference_is_the_plain_product_of_the_plain_table() -> None:
    table = Int8Table(torch.tensor([[1, -2], [127, 0]], dtype=torch.int8), torch.tensor([0.5, 2.0]))
    assert torch.equal(int8_reference(torch.tensor([[1.0, 1.0]]), table), torch.tensor([[-0.5, 254.0]]))
