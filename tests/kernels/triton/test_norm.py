"""The Triton norm, interpreted, against its contract; the interpreter cuts bf16 off instead of rounding it."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.norm import rms_norm_reference
from threefold.kernels.triton import norm as body
from threefold.kernels.triton.norm import rms_norm_body

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [1, 40, 576, 4096])
@pytest.mark.parametrize("has_residual", [False, True])
def test_body_equals_reference(dtype: torch.dtype, width: int, has_residual: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, width).to(dtype), torch.randn(width).to(dtype)
    residual = torch.randn(3, width).to(dtype) if has_residual else None
    expected_residual = None if residual is None else residual.clone()
    expected = rms_norm_reference(x.clone(), expected_residual, weight, 1e-5)

    got = rms_norm_body(weight, 1e-5)(x, residual)

    torch.testing.assert_close(got, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    if residual is not None and expected_residual is not None:
        torch.testing.assert_close(residual, expected_residual, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def test_many_narrow_rows_share_programs_and_the_last_ones_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MANY_ROWS", 8)
    x, weight = torch.randn(70, 100), torch.randn(100)
    residual = torch.randn(72, 100)
    guard = residual[70:].clone()
    expected_residual = residual[:70].clone()
    expected = rms_norm_reference(x, expected_residual, weight, 1e-6)

    torch.testing.assert_close(rms_norm_body(weight, 1e-6)(x, residual[:70]), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(residual[:70], expected_residual)
    assert torch.equal(guard, residual[70:])


def test_zeros_stay_finite_nan_stays_in_its_row_and_no_rows_give_none() -> None:
    x = torch.zeros(3, 32)
    x[1] = float("nan")
    normalise = rms_norm_body(torch.ones(32), 1e-6)

    assert [False, True, False] == normalise(x, None).isnan().any(-1).tolist()
    assert (0, 32) == normalise(x[:0], None).shape
