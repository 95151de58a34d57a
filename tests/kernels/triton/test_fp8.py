"""FP8 bodies through Triton's interpreter, against the contract in torch."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.fp8 import (
    E4M3,
    MAX_FEW_TOKENS_FP8,
    Fp8Inputs,
    Fp8Weight,
    fp8_reference,
    quantise_outputs,
    quantise_tokens_reference,
)
from threefold.kernels.norm import rms_norm_reference
from threefold.kernels.triton.fp8 import few_tokens_fp8_body
from threefold.kernels.triton.fp8_many import many_tokens_fp8
from threefold.kernels.triton.fp8_product import CardFp8Product
from threefold.kernels.triton.fp8_rows import norm_rounded_body, round_rows_body
from threefold.kernels.triton.fp8_tables import (
    MAX_TILED_TOKENS,
    FewSizes,
    ManySizes,
    TileSizes,
    fp8_few_sizes,
    fp8_many_sizes,
    fp8_tile_sizes,
    power_within,
)
from threefold.kernels.triton.fp8_tile import tile_fp8_body

BLOCK = (8, 32)


def block_weight(num_outputs: int, num_inputs: int, block_size: tuple[int, int] = BLOCK) -> Fp8Weight:
    blocks = -(-num_outputs // block_size[0]), -(-num_inputs // block_size[1])
    return Fp8Weight(torch.randn(num_outputs, num_inputs).to(E4M3), torch.rand(blocks) + 0.5, block_size)


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return ((got.float() - right.float()).norm() / right.float().norm()).item()


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_by_block", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_outputs", "num_inputs"),
    [(1, 32, 128), (5, 48, 96), (70, 16, 40)],  # even; inputs, then also tokens and rows that fill no tile
)
def test_few_tokens(
    num_tokens: int, num_outputs: int, num_inputs: int, is_by_block: bool, has_bias: bool, is_gated: bool
) -> None:
    torch.manual_seed(0)
    plain = torch.randn(num_outputs, num_inputs)
    weight = block_weight(num_outputs, num_inputs) if is_by_block else quantise_outputs(plain)
    bias = torch.randn(num_outputs) if has_bias else None
    x = torch.randn(num_tokens, num_inputs)

    got = few_tokens_fp8_body(*weight, bias, is_gated=is_gated)(x, FewSizes(16, 16, 32, 2, 2))

    torch.testing.assert_close(got, fp8_reference(x, weight, bias, is_gated=is_gated), rtol=1e-4, atol=1e-3)


def test_every_number_of_e4m3_is_widened_exactly() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(E4M3)
    values = torch.where(values.float().isnan(), torch.zeros(()), values.float()).to(E4M3)
    weight = Fp8Weight(values.view(16, 16), torch.ones(16))

    x = torch.eye(16).bfloat16()
    got = few_tokens_fp8_body(*weight, None, is_gated=False)(x, FewSizes(16, 16, 16, 1, 2))

    assert torch.equal(got.float(), weight.values.float().T)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "num_outputs", "num_inputs", "num_splits"),
    [(16, 32, 64, 1), (5, 40, 96, 1), (33, 24, 160, 3), (2, 32, 128, 3)],  # splits of unequal length, and one empty
)
def test_tiles(
    num_tokens: int, num_outputs: int, num_inputs: int, num_splits: int, has_bias: bool, is_gated: bool
) -> None:
    torch.manual_seed(7)
    weight = quantise_outputs(torch.randn(num_outputs, num_inputs))
    bias = torch.randn(num_outputs) if has_bias else None
    x = quantise_tokens_reference(torch.randn(num_tokens, num_inputs), Fp8Inputs())

    multiply = tile_fp8_body(weight, bias, is_gated=is_gated, dtype=torch.float32)
    got = multiply(x, TileSizes(16, 16, 32, 4, 2, num_splits))

    wide = x.values.float() * x.scales[:, None]
    torch.testing.assert_close(got, fp8_reference(wide, weight, bias, is_gated=is_gated), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_tokens", "num_outputs", "num_inputs"), [(40, 48, 96), (1, 16, 32), (33, 24, 64)])
def test_many_tokens_and_scales_by_block(num_tokens: int, num_outputs: int, num_inputs: int, has_bias: bool) -> None:
    torch.manual_seed(1)
    weight = block_weight(num_outputs, num_inputs)
    assert weight.block_size is not None
    bias = torch.randn(num_outputs) if has_bias else None
    x = torch.randn(num_tokens, num_inputs)
    values, scales = quantise_tokens_reference(x.view(-1, BLOCK[1]), Fp8Inputs())
    sizes = ManySizes(16, 16, 32, 4, 2, group_m=2)

    rounded = values.view(x.shape), scales.view(num_tokens, -1)
    got = many_tokens_fp8(*rounded, weight.values, weight.scales, weight.block_size, bias, sizes, torch.float32)

    wide = (values.float() * scales[:, None]).view(x.shape)
    torch.testing.assert_close(got, fp8_reference(wide, weight, bias), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("inputs", [Fp8Inputs(), Fp8Inputs(bound=1.5), Fp8Inputs(torch.tensor(0.01))])
@pytest.mark.parametrize("shape", [(3, 64), (1030, 40), (1, 1)])
def test_rounded_rows(shape: tuple[int, int], inputs: Fp8Inputs) -> None:
    torch.manual_seed(2)
    x = torch.randn(shape).bfloat16()
    x[0] = 0

    got = round_rows_body(inputs)(x)

    right = quantise_tokens_reference(x, inputs)
    torch.testing.assert_close(got.scales, right.scales)
    same = (got.values.float() == right.values.float()).float().mean()
    assert same > 0.999  # a number between two others may fall to either side
    torch.testing.assert_close(got.values.float(), right.values.float(), rtol=0.13, atol=0.002)


def test_a_norm_and_a_gate_on_the_way() -> None:
    torch.manual_seed(3)
    x, residual, weight = torch.randn(5, 48).bfloat16(), torch.randn(5, 48).bfloat16(), torch.randn(48).bfloat16()
    added = residual.clone()
    got = norm_rounded_body(weight, 1e-6, Fp8Inputs())(x, added)
    right = quantise_tokens_reference(rms_norm_reference(x, residual, weight, 1e-6), Fp8Inputs())
    assert torch.equal(added, residual)
    assert relative(got.values, right.values) < 0.01
    torch.testing.assert_close(got.scales, right.scales, rtol=0.01, atol=0)

    gate, up = torch.randn(5, 2, 24).bfloat16().unbind(1)
    got = round_rows_body(Fp8Inputs(), is_gated=True)(torch.cat([gate, up], dim=1))
    right = quantise_tokens_reference((torch.nn.functional.silu(gate.float()) * up.float()).bfloat16(), Fp8Inputs())
    assert relative(got.values, right.values) < 0.01
    torch.testing.assert_close(got.scales, right.scales, rtol=0.01, atol=0)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("weight", [quantise_outputs(torch.randn(32, 64)), block_weight(32, 64), block_weight(24, 40)])
def test_few_and_many_agree(weight: Fp8Weight, is_gated: bool) -> None:
    torch.manual_seed(4)
    multiply = CardFp8Product(weight, None, is_gated=is_gated, dtype=torch.bfloat16, inputs=Fp8Inputs())
    x = torch.randn(40, weight.values.shape[1]).bfloat16()

    many, few = multiply(x), torch.cat([multiply(part) for part in x.split(MAX_FEW_TOKENS_FP8)])

    right = fp8_reference(x.float(), weight, is_gated=is_gated)
    assert relative(few, right) < 0.01
    assert relative(many, right) < (0.08 if is_gated else 0.05)  # what rounding x to e4m3 costs


@pytest.mark.parametrize("num_tokens", [MAX_FEW_TOKENS_FP8 + 1, MAX_TILED_TOKENS])
def test_float16_is_not_rounded_to_bfloat16_on_its_way(num_tokens: int) -> None:
    torch.manual_seed(6)
    weight, bias = quantise_outputs(torch.randn(96, 16)), torch.randn(96).half()
    multiply = CardFp8Product(weight, bias, is_gated=False, dtype=torch.float16, inputs=Fp8Inputs())
    x = torch.randn(num_tokens, 16).half()

    got = multiply(x)

    assert got.dtype == torch.float16
    assert relative(got, fp8_reference(x.float(), weight, bias, inputs=Fp8Inputs())) < 5e-4  # bfloat16 alone costs 2e-3


@pytest.mark.parametrize("num_tokens", [50, MAX_TILED_TOKENS + 2])
def test_rounded_rows_go_from_product_to_product(num_tokens: int) -> None:
    torch.manual_seed(5)
    first = CardFp8Product(
        quantise_outputs(torch.randn(64, 32)), None, is_gated=True, dtype=torch.bfloat16, inputs=Fp8Inputs()
    )
    second = CardFp8Product(
        quantise_outputs(torch.randn(16, 32)), None, is_gated=False, dtype=torch.bfloat16, inputs=Fp8Inputs()
    )
    x = torch.randn(num_tokens, 32).bfloat16()
    apart = second(first(x))
    assert first.rounding is not None and second.rounding is not None

    first.round_result(second.rounding)
    together = second(first(round_rows_body(Fp8Inputs())(x)))

    assert relative(together, apart) < 0.02
    assert isinstance(first(x[:3]), torch.Tensor)


def test_sizes_fit_their_blocks() -> None:
    assert [power_within(number, 128) for number in (128, 256, 96, 48, 40)] == [128, 128, 32, 16, 8]
    assert fp8_few_sizes(1, 32, 96).block_inputs == 32
    assert {fp8_many_sizes(n, 64).block_k for n in (33, 100, 5000)} == {64}


def test_few_tokens_are_summed_in_one_order() -> None:
    for num_rows in (512, 24576):
        assert len({fp8_few_sizes(num, num_rows, None) for num in range(1, MAX_FEW_TOKENS_FP8 + 1)}) == 1


def test_splits_fill_the_card() -> None:
    few, many = fp8_tile_sizes(32, 4096), fp8_tile_sizes(32, 24576)
    assert few.num_splits > 1 and many.num_splits == 1
