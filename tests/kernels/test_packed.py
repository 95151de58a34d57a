"""Packed products: the compiled body against the reference, the reference against exact weights, and the choice."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.native import llvm
from threefold.kernels.packed import has_packed_products, packed_product, packed_reference, packed_rows
from threefold.kernels.records import Form, PackedWeight

CPU = torch.device("cpu")
FORMS = [Form(4, 8, False), Form(4, 0, True), Form(8, 128, False), Form(8, 0, True)]
NEEDS_VNNI = pytest.mark.skipif(
    not has_packed_products(torch.bfloat16, CPU), reason="no products of bytes on this processor"
)
EXACT_BOUND = 0.01
"""Of a result's usual size: what rounding inputs to 255 steps may cost."""


def packed_weight(form: Form, out: int, width: int) -> PackedWeight:
    generator = torch.Generator().manual_seed(out + width)
    numbers = torch.randint(0, 1 << form.bits, (out, width), dtype=torch.uint8, generator=generator)
    scales = torch.rand(out, width // 32, generator=generator).add(0.1).div(1 << form.bits).half()
    minima = (-scales.float() * (1 << (form.bits - 1))).half() if form.has_minimum else None
    return PackedWeight(form, numbers, scales, minima)


def inputs(num_tokens: int, width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(num_tokens, width, generator=torch.Generator().manual_seed(num_tokens)).to(dtype)


@NEEDS_VNNI
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "width"), [(32, 32), (96, 576), (3200, 64)])
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 9, 21])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_body_gives_what_the_reference_gives(
    form: Form, out: int, width: int, num_tokens: int, has_bias: bool
) -> None:
    weight, x = packed_weight(form, out, width), inputs(num_tokens, width)
    bias = torch.randn(out).bfloat16() if has_bias else None
    expected = packed_reference(x, weight, bias)

    got = packed_product(weight, bias, out_dtype=torch.float32)(x)

    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@NEEDS_VNNI
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_results_are_of_the_type_of_inputs(dtype: torch.dtype) -> None:
    weight, x = packed_weight(FORMS[1], 64, 96), inputs(5, 96, dtype)

    got = packed_product(weight, None, dtype=dtype)(x)

    assert got.dtype == dtype
    torch.testing.assert_close(got, packed_reference(x, weight).to(dtype), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_rounding_inputs_costs_less_than_a_percent(form: Form) -> None:
    weight, x = packed_weight(form, 192, 576), inputs(64, 576)
    exact = x.float() @ weight.rows(torch.arange(192)).T

    error = packed_reference(x, weight) - exact

    assert 0 < float(error.norm()) < EXACT_BOUND * float(exact.norm())


@NEEDS_VNNI
@pytest.mark.parametrize("form", FORMS)
def test_a_token_is_bitwise_the_same_beside_others_and_alone(form: Form) -> None:
    multiply = packed_product(packed_weight(form, 64, 576), None)
    x = inputs(40, 576)
    together = multiply(x)

    for count in (1, 2, 3, 5, 7, 8, 9, 17):
        parts = [multiply(x[start : start + count]) for start in range(0, len(x), count)]
        assert torch.equal(torch.cat(parts), together)


@NEEDS_VNNI
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("out", [128, 192 + 32 * 9, 96])
@pytest.mark.parametrize("num_tokens", [1, 7, 19])
def test_gated(form: Form, out: int, num_tokens: int) -> None:
    bias = torch.randn(out)
    x = inputs(num_tokens, 64)

    got = packed_product(packed_weight(form, out, 64), bias, is_gated=True)(x)

    expected = silu_mul_reference(packed_product(packed_weight(form, out, 64), bias)(x).float())
    torch.testing.assert_close(got.float(), expected, rtol=2e-2, atol=4e-3 * float(expected.abs().max()))


@NEEDS_VNNI
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_table(form: Form, dtype: torch.dtype) -> None:
    weight = packed_weight(form, 96, 160)
    outputs = torch.tensor([5, 95, 0, 31, 32, 47, 48, 5])

    got = packed_rows(weight, dtype)(outputs)

    torch.testing.assert_close(got, weight.rows(outputs).to(dtype))
    assert packed_rows(weight, dtype)(outputs[:0]).shape == (0, 160)


@NEEDS_VNNI
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_an_input_that_is_not_finite_spoils_its_own_token_alone(fault: float) -> None:
    multiply = packed_product(packed_weight(FORMS[2], 64, 64), None)
    x = inputs(4, 64)
    clean = multiply(x)
    x[2, 40] = fault

    got = multiply(x)

    assert got[2].isnan().all()
    assert torch.equal(got[[0, 1, 3]], clean[[0, 1, 3]])


@NEEDS_VNNI
def test_inputs_of_nothing_give_the_bias() -> None:
    bias = torch.randn(64).bfloat16()
    got = packed_product(packed_weight(FORMS[0], 64, 64), bias)(torch.zeros(2, 64, dtype=torch.bfloat16))

    assert torch.equal(got, bias.expand(2, 64))


@NEEDS_VNNI
def test_inputs_may_be_a_view_of_others() -> None:
    multiply = packed_product(packed_weight(FORMS[1], 64, 64), None)
    x = inputs(6, 128)

    assert torch.equal(multiply(x[::2, 64:]), multiply(x[::2, 64:].clone()))


def test_where_weights_stay_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"avx512vnni", "avx512bw"}
    monkeypatch.setattr(llvm, "has_feature", lambda name: name in features)
    assert has_packed_products(torch.bfloat16, CPU)
    assert not has_packed_products(torch.float32, CPU)
    assert not has_packed_products(torch.bfloat16, torch.device("meta"))
    features.remove("avx512vnni")
    assert not has_packed_products(torch.bfloat16, CPU)
