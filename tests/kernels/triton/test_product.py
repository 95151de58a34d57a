"""Products of few tokens, through Triton's interpreter, against torch."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.triton.product import few_tokens_body
from threefold.kernels.triton.tables import ProductSizes

SIZES = ProductSizes(16, 32, 4, 2)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_outputs", "num_inputs"), [(1, 32, 64), (5, 40, 96), (17, 50, 40), (3, 6, 16)]
)
def test_product(num_tokens: int, num_outputs: int, num_inputs: int, has_bias: bool, is_gated: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(num_outputs, num_inputs), torch.randn(num_tokens, num_inputs)
    bias = torch.randn(num_outputs) if has_bias else None

    got = few_tokens_body(weight, bias, SIZES, is_gated=is_gated)(x)

    right = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(got, silu_mul_reference(right) if is_gated else right, rtol=1e-4, atol=1e-4)


def test_bf16_is_summed_in_float32() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(32, 256).bfloat16(), torch.randn(4, 256).bfloat16()

    got = few_tokens_body(weight, None, SIZES, is_gated=False)(x)

    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), x.float() @ weight.float().T, rtol=1e-2, atol=0.1)
