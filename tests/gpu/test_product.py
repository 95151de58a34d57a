"""Products of few tokens on a card against float32, by themselves and with a norm shared between two."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.linear import MAX_FEW_TOKENS_ON_CARD, NormSharing, Product, product
from threefold.kernels.norm import rms_norm_reference

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


def sharing(weight: torch.Tensor, bias: torch.Tensor | None, is_gated: bool = False) -> NormSharing:
    made: Product = product(weight, bias, is_gated=is_gated)
    assert isinstance(made, NormSharing)
    return made


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 6, MAX_FEW_TOKENS_ON_CARD])
@pytest.mark.parametrize(("width", "num_inputs"), [(4096, 12288), (576, 1536), (50, 40)])
def test_norm_shared_by_two_products(
    width: int, num_inputs: int, num_tokens: int, has_bias: bool, is_gated: bool
) -> None:
    torch.manual_seed(0)
    first = (torch.randn(width, num_inputs, device=CARD) / num_inputs**0.5).bfloat16()
    second = (torch.randn(512, width, device=CARD) / width**0.5).bfloat16()
    biases = [torch.randn(size, device=CARD).bfloat16() if has_bias else None for size in (width, 512)]
    x, residual = torch.randn(num_tokens, num_inputs, device=CARD), torch.randn(num_tokens, width, device=CARD) * 4
    x, residual, norm_weight = x.bfloat16(), residual.bfloat16(), (torch.rand(width, device=CARD) + 0.5).bfloat16()
    right_stream = residual.float() + expected(x, first, biases[0], False)

    unnormed = sharing(first, biases[0]).added_to(residual, x, norm_weight, 1e-6)
    got = sharing(second, biases[1], is_gated)(unnormed)

    right = expected(rms_norm_reference(residual.float(), None, norm_weight, 1e-6), second, biases[1], is_gated)
    assert ((residual.float() - right_stream).norm() / right_stream.norm()).item() < 6e-3
    assert ((got.float() - right).norm() / right.norm()).item() < 8e-3


def test_a_token_has_one_result_whoever_is_beside_it() -> None:
    torch.manual_seed(0)
    first, second = (torch.randn(1024, 1024, device=CARD).bfloat16() / 32 for _ in range(2))
    x, residual = torch.randn(2, MAX_FEW_TOKENS_ON_CARD, 1024, device=CARD).bfloat16().unbind(0)
    norm_weight = torch.ones(1024, device=CARD).bfloat16()

    def results(num_tokens: int) -> torch.Tensor:
        stream = residual[:num_tokens].clone()
        return sharing(second, None)(sharing(first, None).added_to(stream, x[:num_tokens], norm_weight, 1e-6))

    every = results(MAX_FEW_TOKENS_ON_CARD)
    assert all(torch.equal(results(num_tokens), every[:num_tokens]) for num_tokens in (1, 6, 17))
