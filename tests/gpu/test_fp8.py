"""FP8 products on a card against float32: few and many tokens, eager and in a graph, and a whole model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

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
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.quantization import MADE_HERE
from threefold.models.shapes import expected_shapes, kept_bytes
from threefold.models.spec import ModelSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
FEW_BOUND = 6e-3
"""Of the whole result: what rounding it to bfloat16 costs."""
MANY_BOUND = 0.04
"""And rounding x to e4m3; gated, twice."""
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
@pytest.mark.parametrize("num_tokens", [1, 2, MAX_FEW_TOKENS_FP8, MAX_FEW_TOKENS_FP8 + 1, 32, 64, 300, 2048])
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

    right = fp8_reference(x.float(), weight, bias, is_gated=is_gated)
    assert got.shape == right.shape and got.dtype == dtype
    is_few = num_tokens <= MAX_FEW_TOKENS_FP8 or (is_by_block and num_inputs % 128)
    assert relative(got, right) < (FEW_BOUND if is_few else MANY_BOUND * (2 if is_gated else 1))


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
def test_a_model_quantised_while_loading_stays_near_itself(num_tokens: int) -> None:
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


def whole_prompt(num_tokens: int) -> Batch:
    """One row's prompt, its tokens in blocks of 16 one behind another."""
    place = torch.arange(num_tokens, device=CARD)
    return Batch(
        token_ids=place % 1000,
        positions=place,
        slots=place,
        row_starts=torch.tensor([0, num_tokens], dtype=torch.int32, device=CARD),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32, device=CARD),
        block_tables=torch.arange(16, dtype=torch.int32, device=CARD)[None],
        logit_tokens=place,
        max_new=num_tokens,
        max_context=num_tokens,
    )
