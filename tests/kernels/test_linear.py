"""Products by every body, against float32; the choice of body, and of dtype."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from threefold.kernels import linear
from threefold.kernels.linear import MAX_FEW_TOKENS, FewTokensProduct, can_read_packed, has_packed_bf16, product

NEEDS_BF16 = pytest.mark.skipif(not has_packed_bf16(), reason="oneDNN has no bf16 products on this processor")
TOKENS = [1, 2, 3, 4, 7, MAX_FEW_TOKENS, MAX_FEW_TOKENS + 1, 100]


def operands(out: int, width: int, num_tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(out + width)
    return [torch.randn(shape).div(8).to(dtype) for shape in ((num_tokens, width), (out, width), (out,))]


@pytest.mark.parametrize("num_tokens", TOKENS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("out", "width"), [(128, 64), (960, 576), (70, 50)])  # the last: no whole blocks
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_product(num_tokens: int, has_bias: bool, out: int, width: int, dtype: torch.dtype, bound: float) -> None:
    x, weight, bias = operands(out, width, num_tokens, dtype)
    expected = F.linear(x.float(), weight.float(), bias.float() if has_bias else None)

    got = product(weight.clone(), bias if has_bias else None)(x)

    assert dtype == got.dtype
    torch.testing.assert_close(got.float(), expected, rtol=bound, atol=bound)


@NEEDS_BF16
def test_a_token_is_bitwise_the_same_beside_others_and_alone() -> None:
    x, weight, bias = operands(128, 64, 7, torch.bfloat16)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    assert can_read_packed(packed, weight.shape)
    few = FewTokensProduct(packed, weight.shape, bias)

    together = few(x)

    assert all(torch.equal(together[i : i + 1], few(x[i : i + 1])) for i in range(len(x)))


@NEEDS_BF16
def test_an_order_that_is_not_the_expected_one_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Wrong(FewTokensProduct):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(x))
            return super().__call__(x) + 1.0

    monkeypatch.setattr(linear, "FewTokensProduct", Wrong)
    x, weight, _ = operands(128, 64, 3, torch.bfloat16)

    got = product(weight.clone(), None)(x)

    assert [1] == calls  # the trial, and never again
    torch.testing.assert_close(got.float(), F.linear(x.float(), weight.float()), rtol=2e-2, atol=2e-2)


@NEEDS_BF16
def test_weights_are_held_by_the_product() -> None:
    x, weight, bias = operands(128, 64, 2, torch.bfloat16)
    expected = F.linear(x.float(), weight.float(), bias.float())
    multiply = product(weight.clone(), bias.clone())

    garbage = [torch.full((128, 64), 9.0).bfloat16() for _ in range(50)]  # takes whatever memory was let go

    torch.testing.assert_close(multiply(x).float(), expected, rtol=2e-2, atol=2e-2)
    assert garbage


def test_without_bf16_products_float32_is_preferred_and_bf16_still_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_packed_bf16", lambda: False)
    x, weight, _ = operands(64, 64, 3, torch.bfloat16)

    assert torch.float32 == linear.preferred_cpu_dtype()
    torch.testing.assert_close(
        linear.product(weight, None)(x).float(), F.linear(x.float(), weight.float()), rtol=2e-2, atol=2e-2
    )


def test_the_faster_dtype_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_packed_bf16", lambda: True)
    times = {torch.bfloat16: 2.0, torch.float32: 1.0}
    monkeypatch.setattr(linear, "_trial_ms", lambda dtype: times[dtype])
    assert torch.float32 == linear.preferred_cpu_dtype()

    times[torch.bfloat16] = 0.5

    assert torch.bfloat16 == linear.preferred_cpu_dtype()
