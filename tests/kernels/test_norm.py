"""The compiled norm does what the contract says, in both dtypes, with and without a residual."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.norm import rms_norm, rms_norm_reference

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [16, 576, 40])  # 40: no multiple of 16 lanes, served by the reference
@pytest.mark.parametrize("num_tokens", [1, 3, 70])
@pytest.mark.parametrize("has_residual", [False, True])
def test_body_equals_reference(dtype: torch.dtype, width: int, num_tokens: int, has_residual: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(num_tokens, width).to(dtype), torch.randn(width).to(dtype)
    residual = torch.randn(num_tokens, width).to(dtype) if has_residual else None
    expected_residual = None if residual is None else residual.clone()
    expected = rms_norm_reference(x.clone(), expected_residual, weight, 1e-5)

    got = rms_norm(weight, 1e-5)(x, residual)

    torch.testing.assert_close(got, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    if residual is not None and expected_residual is not None:
        torch.testing.assert_close(residual, expected_residual, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def test_zeros_stay_finite_and_nan_stays_in_its_row() -> None:
    x = torch.zeros(3, 32)
    x[1] = float("nan")

    got = rms_norm(torch.ones(32), 1e-6)(x, None)

    assert torch.equal(torch.tensor([False, True, False]), got.isnan().any(-1))


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    x, norm = torch.randn(9, 64).bfloat16(), rms_norm(torch.randn(64).bfloat16(), 1e-5)

    assert torch.equal(norm(x, None)[4:5], norm(x[4:5].clone(), None))
