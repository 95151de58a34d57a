"""FP8 products by the contract, and rounding: bounds against float32, odd numbers, odd shapes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from threefold.kernels.fp8 import (
    E4M3,
    MAX_E4M3,
    Fp8Inputs,
    Fp8Weight,
    fp8_product,
    fp8_reference,
    keeps_fp8,
    quantise_outputs,
    quantise_tokens_reference,
)


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return ((got.float() - right.float()).norm() / right.float().norm()).item()


@given(seed=st.integers(0, 1000), spread=st.floats(-20, 20), width=st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_rounding_costs_a_sixteenth_at_most(seed: int, spread: float, width: int) -> None:
    """Half a step of three bits; below the smallest normal number half of its steps instead."""
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(seed)) * 2.0**spread
    values, scales = quantise_tokens_reference(x, Fp8Inputs())
    error = (values.float() * scales[:, None] - x).abs()
    assert bool((error <= x.abs() / 16 * 1.001 + scales[:, None] * 2**-10 * 1.001).all())
    assert bool((values.float().abs().amax(1) == MAX_E4M3).all())


def test_zeros_stay_zeros_and_bounds_cut() -> None:
    values, scales = quantise_tokens_reference(torch.zeros(2, 8), Fp8Inputs())
    assert not values.float().any() and bool((scales > 0).all())
    values, scales = quantise_tokens_reference(torch.tensor([[1.0, 100.0]]), Fp8Inputs(bound=10.0))
    assert (values.float() * scales[:, None])[0].tolist() == pytest.approx([1.0, 10.0], rel=1 / 16)
    values, scales = quantise_tokens_reference(torch.tensor([[1.0, 1000.0]]), Fp8Inputs(torch.tensor(0.5)))
    assert scales.tolist() == [0.5]
    assert values.float()[0].tolist() == [2.0, MAX_E4M3]


@pytest.mark.parametrize("num_outputs", [40, 5000])
def test_products_by_the_contract_are_near_float32(num_outputs: int) -> None:
    torch.manual_seed(0)
    plain, x = torch.randn(num_outputs, 96), torch.randn(7, 96)
    weight = quantise_outputs(plain)
    right = x @ plain.T
    assert relative(fp8_reference(x, weight), right) < 0.04  # weights rounded
    assert relative(fp8_reference(x, weight, inputs=Fp8Inputs()), right) < 0.055  # and activations


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("block_size", [None, (16, 32), (48, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_multiplies_by_the_contract(
    dtype: torch.dtype, block_size: tuple[int, int] | None, is_gated: bool
) -> None:
    torch.manual_seed(1)
    values, bias, x = torch.randn(64, 96).to(E4M3), torch.randn(64).to(dtype), torch.randn(9, 96).to(dtype)
    shape = (64,) if block_size is None else (-(-64 // block_size[0]), -(-96 // block_size[1]))
    weight = Fp8Weight(values, torch.rand(shape) * 0.1, block_size)
    right = fp8_reference(x, weight, bias, is_gated=is_gated)

    got = fp8_product(weight, bias, is_gated=is_gated, dtype=dtype)(x)

    assert got.dtype == dtype
    assert relative(got, right) < (1e-5 if dtype == torch.float32 else 0.015)


def test_where_weights_stay_fp8() -> None:
    card, cpu = torch.device("cuda"), torch.device("cpu")
    assert keeps_fp8(torch.bfloat16, card) and keeps_fp8(torch.float16, card)
    assert not keeps_fp8(torch.float32, card) and not keeps_fp8(torch.bfloat16, cpu)
