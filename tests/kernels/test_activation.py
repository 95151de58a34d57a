"""SiLU times up: the compiled body against the contract."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul, silu_mul_reference

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [16, 1536, 24])
@pytest.mark.parametrize("num_tokens", [1, 5, 65])
def test_body_equals_reference(dtype: torch.dtype, width: int, num_tokens: int) -> None:
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(num_tokens, 2 * width)).to(dtype)

    got = silu_mul(width, dtype, torch.device("cpu"))(gate_up)

    torch.testing.assert_close(got, silu_mul_reference(gate_up), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def test_far_out_gates_neither_overflow_nor_vanish() -> None:
    gate_up = torch.cat([torch.tensor([[-1e4, -90.0, 90.0, 1e4] * 4]), torch.ones(1, 16)], dim=1)

    got = silu_mul(16, torch.float32, torch.device("cpu"))(gate_up)

    torch.testing.assert_close(got, torch.tensor([[0.0, 0.0, 90.0, 1e4] * 4]), rtol=1e-5, atol=1e-5)
