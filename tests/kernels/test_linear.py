"""Products by every body, against float32; the choice of body, and of dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from threefold.kernels import linear
from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.linear import MAX_FEW_TOKENS, FewTokensProduct, can_read_packed, has_packed_bf16, product
from threefold.kernels.native import llvm

NEEDS_BF16 = pytest.mark.skipif(not has_packed_bf16(), reason="oneDNN has no bf16 products on this processor")
NEEDS_FEW = pytest.mark.skipif(
    not (has_packed_bf16() and llvm.has_feature("avx512bf16")), reason="no bf16 instructions on this processor"
)
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


@NEEDS_FEW
def test_a_token_is_bitwise_the_same_beside_others_and_alone() -> None:
    x, weight, bias = operands(128, 64, 7, torch.bfloat16)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    assert can_read_packed(packed, weight.shape)
    few = FewTokensProduct(packed, weight.shape, bias)

    together = few(x)

    assert all(torch.equal(together[i : i + 1], few(x[i : i + 1])) for i in range(len(x)))


@NEEDS_FEW
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


@NEEDS_FEW
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
    clock = Clock(monkeypatch, {torch.bfloat16: 2.0, torch.float32: 1.0})
    assert torch.float32 == linear.preferred_cpu_dtype()

    clock.takes_s[torch.bfloat16] = 0.5

    assert torch.bfloat16 == linear.preferred_cpu_dtype()


def test_a_busy_moment_at_the_start_does_not_decide_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_packed_bf16", lambda: True)
    clock = Clock(monkeypatch, {torch.bfloat16: 0.5, torch.float32: 2.5})
    clock.busy_till_s = 80.0  # as long as fifteen trials in bf16 take meanwhile

    assert torch.bfloat16 == linear.preferred_cpu_dtype()


class Clock:
    """Time that passes by trials alone; while a neighbour is busy each takes ten times as long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: dict[torch.dtype, float]) -> None:
        self.now_s, self.busy_till_s, self.takes_s = 0.0, 0.0, takes_s
        monkeypatch.setattr(linear, "_trial", lambda dtype: lambda: self._pass(dtype))
        monkeypatch.setattr(linear.time, "perf_counter", lambda: self.now_s)

    def _pass(self, dtype: torch.dtype) -> None:
        self.now_s += self.takes_s[dtype] * (10 if self.now_s < self.busy_till_s else 1)


def packed_weight() -> tuple[torch.Tensor, torch.Size]:
    weight = operands(128, 64, 1, torch.bfloat16)[1]
    return torch.ops.mkldnn._reorder_linear_weight(weight, None), weight.shape


class WithoutAccess:
    """torch.ops.mkldnn of a torch that does not say where its tensors lie."""

    def __getattr__(self, name: str) -> Any:
        if name in {"data_ptr", "_nbytes"}:
            raise AttributeError(name)
        return getattr(MKLDNN, name)


MKLDNN = torch.ops.mkldnn


@NEEDS_BF16
def test_a_torch_without_addresses_is_served_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = operands(128, 64, 3, torch.bfloat16)
    monkeypatch.setattr(torch.ops, "mkldnn", WithoutAccess())
    monkeypatch.setattr(linear, "FewTokensProduct", None)

    got = product(weight.clone(), None)(x)

    torch.testing.assert_close(got.float(), F.linear(x.float(), weight.float()), rtol=2e-2, atol=2e-2)


@NEEDS_BF16
def test_a_processor_without_bf16_instructions_is_served_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "has_feature", lambda name: False)

    assert not can_read_packed(*packed_weight())


@NEEDS_FEW
@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_a_wrong_order_is_noticed_however_small_the_weights(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    weight = operands(128, 64, 1, torch.bfloat16)[1] * size
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    assert linear.is_expected_order(packed, weight.shape)
    monkeypatch.setattr(linear, "FewTokensProduct", Turned)

    assert not linear.is_expected_order(packed, weight.shape)


class Turned(FewTokensProduct):
    """A body that reads the inputs in another order than they are kept."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x.roll(2, dims=1))


@NEEDS_FEW
def test_both_sides_of_the_switch_differ_by_rounding_only() -> None:
    x, weight, bias = operands(128, 576, MAX_FEW_TOKENS + 1, torch.bfloat16)
    multiply = product(weight.clone(), bias.clone())

    few, many = multiply(x[:MAX_FEW_TOKENS]), multiply(x)[:MAX_FEW_TOKENS]

    torch.testing.assert_close(few, many, rtol=2**-7, atol=2**-7)


@NEEDS_FEW
def test_beside_amx_only_very_few_tokens_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Watched(FewTokensProduct):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().__call__(x)

    monkeypatch.setattr(linear, "FewTokensProduct", Watched)
    monkeypatch.setattr(llvm, "has_feature", lambda name: True)
    x, weight, _ = operands(128, 64, 5, torch.bfloat16)
    multiply = product(weight.clone(), None)

    multiply(x[:4])
    multiply(x)

    assert [1, 4] == sizes  # the trial, and four tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 200])
def test_a_gated_product_is_the_product_through_the_gate(dtype: torch.dtype, num_tokens: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(128, 64).to(dtype) / 8, torch.randn(num_tokens, 64).to(dtype)
    plain = product(weight.clone(), None)(x)

    gated = product(weight.clone(), None, is_gated=True)(x)

    torch.testing.assert_close(gated, silu_mul_reference(plain), rtol=1e-2, atol=1e-2)
