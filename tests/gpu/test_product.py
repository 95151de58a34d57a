"""Products of few tokens on a card against float32, eager and in a graph."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.linear import MAX_FEW_TOKENS_ON_CARD, product

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_gated: bool) -> torch.Tensor:
    out = x.float() @ weight.float().T
    if bias is not None:
        out += bias.float()
    return silu_mul_reference(out) if is_gated else out


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 2, 5, MAX_FEW_TOKENS_ON_CARD, MAX_FEW_TOKENS_ON_CARD + 1, 300])
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"), [(6144, 4096), (4096, 12288), (3072, 576), (100, 1536), (50, 40)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_product(
    dtype: torch.dtype, num_outputs: int, num_inputs: int, num_tokens: int, has_bias: bool, is_gated: bool
) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(num_outputs, num_inputs, device=CARD) / num_inputs**0.5).to(dtype)
    bias = torch.randn(num_outputs, device=CARD).to(dtype) if has_bias else None
    x = torch.randn(num_tokens, num_inputs, device=CARD).to(dtype)

    got = product(weight, bias, is_gated=is_gated)(x)

    right = expected(x, weight, bias, is_gated)
    assert got.shape == right.shape
    assert ((got.float() - right).norm() / right.norm()).item() < (6e-3 if dtype == torch.bfloat16 else 1e-3)
