"""Products of few tokens, through Triton's interpreter, against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.norm import rms_norm_reference
from threefold.kernels.triton.product import FewTokens
from threefold.kernels.triton.tables import ProductSizes, product_sizes

Cut = Callable[[int], ProductSizes]


@pytest.fixture(params=[1, 4])
def cut(request: pytest.FixtureRequest) -> Cut:
    """As tables do, programs have more outputs where there are more tokens; inputs in one piece and in several."""
    pieces: int = request.param
    return lambda num_tokens: ProductSizes(16 if num_tokens <= 8 else 32, 32, pieces, 2, pieces)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_outputs", "num_inputs"), [(1, 32, 64), (5, 40, 96), (17, 50, 40), (3, 6, 16)]
)
def test_product(num_tokens: int, num_outputs: int, num_inputs: int, has_bias: bool, is_gated: bool, cut: Cut) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(num_outputs, num_inputs), torch.randn(num_tokens, num_inputs)
    bias = torch.randn(num_outputs) if has_bias else None

    got = FewTokens(weight, bias, cut, is_gated=is_gated)(x)

    right = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(got, silu_mul_reference(right) if is_gated else right, rtol=1e-4, atol=1e-4)


def test_bf16_is_summed_in_float32(cut: Cut) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(32, 256).bfloat16(), torch.randn(4, 256).bfloat16()

    got = FewTokens(weight, None, cut, is_gated=False)(x)

    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), x.float() @ weight.float().T, rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (5, 40), (32, 72)])
def test_a_norm_shared_by_two_products_is_the_norm_by_itself(
    num_tokens: int, width: int, has_bias: bool, is_gated: bool, cut: Cut
) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(num_tokens, 48), torch.randn(num_tokens, width) * 3
    first, second = torch.randn(width, 48), torch.randn(40, width)
    first_bias, second_bias = (torch.randn(width), torch.randn(40)) if has_bias else (None, None)
    norm_weight, stream = torch.rand(width) + 0.5, residual.clone()

    unnormed = FewTokens(first, first_bias, cut, is_gated=False).added_to(stream, x, norm_weight, 1e-5)
    got = FewTokens(second, second_bias, cut, is_gated=is_gated)(unnormed)

    normed = rms_norm_reference(torch.nn.functional.linear(x, first, first_bias), residual, norm_weight, 1e-5)
    right = torch.nn.functional.linear(normed, second, second_bias)
    torch.testing.assert_close(stream, residual, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got, silu_mul_reference(right) if is_gated else right, rtol=1e-4, atol=1e-4)


def test_what_others_compute_in_a_step_changes_no_token(cut: Cut) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(20, 48).bfloat16(), torch.randn(20, 64).bfloat16()
    first, second = (torch.randn(shape).bfloat16() for shape in ((64, 48), (40, 64)))
    norm_weight = torch.ones(64).bfloat16()

    def results(num_tokens: int) -> torch.Tensor:
        before = FewTokens(first, None, cut, is_gated=False)
        unnormed = before.added_to(residual[:num_tokens].clone(), x[:num_tokens], norm_weight, 1e-5)
        return FewTokens(second, None, cut, is_gated=False)(unnormed)

    assert torch.equal(results(3), results(20)[:3])


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (151936, 4096), (1024, 3072), (960, 576), (40, 24)],
)
def test_how_many_tokens_there_are_has_no_say_in_a_sum(shape: tuple[int, int], is_gated: bool) -> None:
    cuts = [product_sizes(*shape, num_tokens, is_gated=is_gated) for num_tokens in range(1, 33)]

    assert {sizes.num_pieces for sizes in cuts} in ({1}, {4})
    assert all(sizes.num_pieces == 1 or sizes.block_k == cuts[0].block_k for sizes in cuts)
    assert all(sizes.block_n % 16 == 0 for sizes in cuts)
