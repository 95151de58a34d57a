"""FP8 products on a card against float32: few and many tokens, eager and in a graph, and a whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from threefold.kernels.activation import silu_mul_reference
from threefold.kernels.fp8 import (
    E4M3,
    MAX_FEW_TOKENS_FP8,
    Fp8Inputs,
    Fp8Weight,
    Rounding,
    fp8_product,
    fp8_reference,
    quantise_outputs,
    quantise_tokens_reference,
)
from threefold.kernels.norm import rms_norm_reference
from threefold.kernels.triton.fp8_tables import MAX_FEW_BY_BLOCK, MAX_TILED_TOKENS
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.quantization import MADE_HERE
from threefold.models.shapes import expected_shapes, kept_bytes
from threefold.models.spec import ModelSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
ROUNDINGS = 1.05
"""Of what rounding results costs by itself; a bit more, for sums that lie between two numbers fall to either side."""
SUMS = 1e-3
"""Of the whole result: digits lost in sums of float32; gated, gate and up lose them both."""
FP8_SUMS = 2**-13
"""And in torch's sums inside the tensor cores, which keep 13 digits, each time that 32 products are added: by chance up
or down, so all together as the root of their number."""
SHAPES = [
    (6144, 4096, torch.bfloat16),
    (24576, 4096, torch.bfloat16),
    (32768, 1024, torch.float16),
    (4096, 12288, torch.bfloat16),
    (1024, 576, torch.bfloat16),
    (4096, 512, torch.float16),
]


def made(num_outputs: int, num_inputs: int, is_by_block: bool) -> Fp8Weight:
    torch.manual_seed(0)
    plain = torch.randn(num_outputs, num_inputs, device=CARD) / num_inputs**0.5
    if not is_by_block:
        return quantise_outputs(plain)
    scales = torch.rand(-(-num_outputs // 128), -(-num_inputs // 128), device=CARD) * 0.1 + 0.05
    return Fp8Weight((plain * 100).to(E4M3), scales, (128, 128))


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return ((got.float() - right.float()).norm() / right.float().norm()).item()


@pytest.mark.parametrize(("is_gated", "has_bias"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    "num_tokens", [1, MAX_FEW_TOKENS_FP8, MAX_FEW_TOKENS_FP8 + 1, 17, MAX_TILED_TOKENS, MAX_TILED_TOKENS + 1, 300, 2048]
)
@pytest.mark.parametrize(("num_outputs", "num_inputs", "dtype"), SHAPES)
@pytest.mark.parametrize("is_by_block", [False, True])
def test_product(
    dtype: torch.dtype,
    is_by_block: bool,
    num_outputs: int,
    num_inputs: int,
    num_tokens: int,
    has_bias: bool,
    is_gated: bool,
) -> None:
    weight = made(num_outputs, num_inputs, is_by_block)
    bias = torch.randn(num_outputs, device=CARD).to(dtype) if has_bias else None
    x = torch.randn(num_tokens, num_inputs, device=CARD).to(dtype)

    got = fp8_product(weight, bias, is_gated=is_gated, dtype=dtype)(x)

    given = as_multiplied(x, weight)
    right = fp8_reference(given, weight, bias, is_gated=is_gated)
    is_by_torch = not is_by_block and num_tokens > MAX_TILED_TOKENS  # which writes bfloat16 alone
    rounded = with_results_rounded(given, weight, bias, torch.bfloat16 if is_by_torch else dtype, is_gated)
    of_roundings = relative(rounded, right)
    assert got.shape == right.shape and got.dtype == dtype
    of_sums = SUMS + is_by_torch * FP8_SUMS * (num_inputs / 32) ** 0.5
    assert relative(got, right) < ROUNDINGS * of_roundings + of_sums * (1 + is_gated)


def as_multiplied(x: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """What a body for so many tokens multiplies with, in float32: x as it is, or rounded as the card rounds it."""
    most = MAX_FEW_TOKENS_FP8 if weight.block_size is None else MAX_FEW_BY_BLOCK
    is_odd = weight.block_size is not None and x.shape[1] % weight.block_size[1]
    if len(x) <= most or is_odd:
        return x.float()
    from threefold.kernels.triton.fp8_rows import round_rows_body

    width = x.shape[1] if weight.block_size is None else weight.block_size[1]
    values, scales = round_rows_body(Fp8Inputs())(x.view(-1, width))
    return (values.float() * scales[:, None]).view(x.shape)


def with_results_rounded(
    given: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None, dtype: torch.dtype, is_gated: bool
) -> torch.Tensor:
    """The product in float32, bias and results rounded to the type that they are kept in, before and after a gate."""
    results = fp8_reference(given, weight, None if bias is None else bias.to(dtype)).to(dtype)
    return silu_mul_reference(results.float()).to(dtype) if is_gated else results


@pytest.mark.parametrize("inputs", [Fp8Inputs(bound=2.0), Fp8Inputs(torch.tensor(0.01))])
def test_fixed_scales_and_bounds(inputs: Fp8Inputs) -> None:
    inputs = inputs._replace(fixed_scale=None if inputs.fixed_scale is None else inputs.fixed_scale.to(CARD))
    weight, x = made(1024, 512, is_by_block=False), torch.randn(100, 512, device=CARD).bfloat16()
    got = fp8_product(weight, None, is_gated=False, dtype=torch.bfloat16, inputs=inputs)(x)
    assert relative(got, fp8_reference(x.float(), weight, inputs=inputs)) < 0.01


@pytest.mark.parametrize("num_tokens", [33, 256, 3000])
@pytest.mark.parametrize("width", [4096, 12288, 576])
def test_rounding_on_the_way_out_of_norm_and_gate(width: int, num_tokens: int) -> None:
    from threefold.kernels.triton.fp8_rows import norm_rounded_body, round_rows_body

    torch.manual_seed(1)
    x, residual = (torch.randn(num_tokens, width, device=CARD).bfloat16() for _ in range(2))
    weight, added = torch.rand(width, device=CARD).bfloat16(), residual.clone()
    got = norm_rounded_body(weight, 1e-6, Fp8Inputs())(x, added)
    right = quantise_tokens_reference(rms_norm_reference(x, residual, weight, 1e-6), Fp8Inputs())
    assert torch.equal(added, residual)
    torch.testing.assert_close(got.scales, right.scales, rtol=0.01, atol=0)
    assert relative(got.values, right.values) < 0.01

    both = torch.randn(num_tokens, 2 * width, device=CARD).bfloat16()
    gate, up = both.float().chunk(2, dim=1)
    got = round_rows_body(Fp8Inputs(), is_gated=True)(both)
    right = quantise_tokens_reference((torch.nn.functional.silu(gate) * up).bfloat16(), Fp8Inputs())
    torch.testing.assert_close(got.scales, right.scales, rtol=0.01, atol=0)
    assert relative(got.values, right.values) < 0.01


def test_a_graph_gives_what_eager_gives() -> None:
    from threefold.kernels.triton.fp8_product import CardFp8Product

    first = CardFp8Product(made(2048, 512, False), None, is_gated=True, dtype=torch.bfloat16, inputs=Fp8Inputs())
    first.round_result(Rounding(MAX_FEW_TOKENS_FP8, Fp8Inputs()))
    second = CardFp8Product(made(512, 1024, False), None, is_gated=False, dtype=torch.bfloat16, inputs=Fp8Inputs())
    for num_tokens in (1, 64):
        x = torch.randn(num_tokens, 512, device=CARD).bfloat16()
        eager = second(first.handed_on(x))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = second(first.handed_on(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, eager)


@pytest.mark.parametrize("num_tokens", [3, 200])
def test_a_model_quantised_while_loading_stays_near_itself(
    num_tokens: int, whole_prompt: Callable[[int], Batch]
) -> None:
    spec = ModelSpec("tiny", 1024, 512, 4, 8, 4, 64, 1024, 512)
    quantised = replace(spec, quantization=MADE_HERE["fp8"])
    dice = torch.Generator().manual_seed(3)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=dice) / shape[1] ** 0.5
        for name, shape in expected_shapes(spec).items()
    }
    outputs, logits, num_bytes = [], [], []
    for one in (spec, quantised):
        before = torch.cuda.memory_allocated()
        decoder = Decoder(one, torch.bfloat16, CARD)
        decoder.load(weights.items())
        num_bytes.append(torch.cuda.memory_allocated() - before)
        kv = allocate_kv(one, 16, 16, torch.bfloat16, CARD)
        outputs.append(decoder.forward(whole_prompt(num_tokens), kv))
        logits.append(decoder.logits(outputs[0]))
        del decoder, kv
    assert relative(outputs[1], outputs[0]) < 0.25  # 0.12 of it is what weights lose
    assert 0.001 < relative(logits[1], logits[0]) < 0.05
    saved = kept_bytes(spec, torch.bfloat16, CARD) - kept_bytes(quantised, torch.bfloat16, CARD)
    assert num_bytes[0] - num_bytes[1] == pytest.approx(saved, rel=0.05)
