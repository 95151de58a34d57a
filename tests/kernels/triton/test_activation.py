"""Triton's SiLU times up, interpreted, against its contract."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.triton import activation as body
from threefold.kernels.triton.activation import silu_mul_body

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [1, 512, 700])
@pytest.mark.parametrize("few_numbers", [0, 1 << 20])
def test_body_equals_reference(
    dtype: torch.dtype, width: int, few_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "FEW_NUMBERS", few_numbers)
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(3, 2 * width)).to(dtype)

    got = silu_mul_body(width)(gate_up)

    torch.testing.assert_close(got, silu_mul_reference(gate_up), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_far_out_gates_neither_overflow_nor_vanish() -> None:
    gate_up = torch.cat([torch.tensor([[-1e4, -90.0, 90.0, 1e4]]), torch.ones(1, 4)], dim=1)

    torch.testing.assert_close(silu_mul_body(4)(gate_up), torch.tensor([[0.0, 0.0, 90.0, 1e4]]), rtol=1e-5, atol=1e-5)


def test_no_rows_give_none() -> None:
    assert (0, 8) == silu_mul_body(8)(torch.empty(0, 16)).shape
