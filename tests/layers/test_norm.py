"""The norm layer: its weight, what does not fit, and when it is shared between products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.linear import NormSharing, Product, Unnormed
from threefold.kernels.norm import rms_norm_reference
from threefold.layers.linear import ColumnParallelLinear, RowParallelLinear
from threefold.layers.norm import RMSNorm
from threefold.layers.quant import Plain
from threefold.parallel import single_group

CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
WIDTH = 32


class Sharing(NormSharing):
    """In torch, and counts the norms that it began."""

    max_tokens = 4

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self.num_begun = 0

    def __call__(self, x: torch.Tensor | Unnormed) -> torch.Tensor:
        if isinstance(x, torch.Tensor):
            return x @ self._weight.T
        return x.numbers @ self._weight.T * torch.rsqrt(x.squares.sum(0) / x.numbers.shape[1] + x.eps)[:, None]

    def added_to(self, residual: torch.Tensor, x: torch.Tensor, norm_weight: torch.Tensor, eps: float) -> Unnormed:
        self.num_begun += 1
        residual += self(x)
        return Unnormed(residual * norm_weight, residual.square().sum(1)[None], eps)


class SharingScheme(Plain):
    def product(
        self,
        tensors: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None,
        *,
        is_gated: bool,
        dtype: torch.dtype,
    ) -> Product:
        return Sharing(tensors["weight"])


def between_products(
    group: Any, *, before_shares: bool = True, after_shares: bool = True
) -> tuple[RowParallelLinear, RMSNorm, ColumnParallelLinear]:
    """A norm joined to the loaded products around it."""
    torch.manual_seed(0)
    schemes = [SharingScheme() if shares else None for shares in (before_shares, after_shares)]
    before = RowParallelLinear("o", 16, WIDTH, has_bias=False, group=group, scheme=schemes[0], **CPU)
    after = ColumnParallelLinear({"q": 8}, WIDTH, has_bias=False, group=group, scheme=schemes[1], **CPU)
    before.load("o", "weight", torch.randn(WIDTH, 16))
    after.load("q", "weight", torch.randn(8, WIDTH))
    norm = RMSNorm(WIDTH, 1e-5, **CPU)
    norm.load(torch.rand(WIDTH) + 0.5)
    norm.join(before, after)
    return before, norm, after


@pytest.mark.parametrize("width", [32, 20])
def test_the_loaded_weight_is_used(width: int) -> None:
    torch.manual_seed(0)
    norm = RMSNorm(width, 1e-5, torch.float32, torch.device("cpu"))
    assert not norm.is_loaded
    weight, x = torch.randn(width), torch.randn(3, width)

    norm.load(weight)

    assert norm.is_loaded
    torch.testing.assert_close(norm(x), rms_norm_reference(x, None, weight, 1e-5))


def test_a_wrong_shape_is_refused() -> None:
    norm = RMSNorm(32, 1e-5, torch.float32, torch.device("cpu"))

    with pytest.raises(ModelLoadError, match=r"\[31\], the model needs \[32\]"):
        norm.load(torch.ones(31))
    assert not norm.is_loaded


@pytest.mark.parametrize(("num_tokens", "is_shared"), [(1, True), (4, True), (5, False)])
def test_products_share_the_norm_of_few_tokens(num_tokens: int, is_shared: bool) -> None:
    before, norm, after = between_products(single_group())
    x, stream = torch.randn(num_tokens, 16), torch.randn(num_tokens, WIDTH)
    residual = stream.clone()

    got = after(norm.of_sum(before, x, stream))

    right = after(rms_norm_reference(before(x), residual, norm.weight, norm.eps))
    assert isinstance(before.norm_sharing, Sharing)
    assert before.norm_sharing.num_begun == is_shared
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stream, residual)


@pytest.mark.parametrize("which", ["before_shares", "after_shares"])
def test_a_norm_stays_by_itself_where_one_product_does_not_share(which: str) -> None:
    before, norm, _ = between_products(single_group(), **{which: False})
    x, stream = torch.randn(2, 16), torch.randn(2, WIDTH)
    right = rms_norm_reference(before(x), stream.clone(), norm.weight, norm.eps)

    got = norm.of_sum(before, x, stream)

    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


def test_ranks_do_not_share_norms_since_their_sums_are_not_whole(ranks: Callable[[int], list[Any]]) -> None:
    before, _, after = between_products(ranks(2)[0])

    assert before.norm_sharing is None
    assert after.norm_sharing is None
