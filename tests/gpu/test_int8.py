"""Int8 tables on a card: rows as the reference has them, products against float32, in a graph, and tied models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from threefold.kernels.int8 import Int8Table, int8_lookup, int8_product, int8_reference, lookup_reference, quantise_rows
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.quantization import MADE_HERE
from threefold.models.shapes import expected_shapes, kept_bytes
from threefold.models.spec import ModelSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
ROUNDINGS = 1.05
"""Of what rounding results costs by itself."""
SUMS = 1e-4
"""Of the whole result: digits lost in sums of float32."""
SHAPES = [(151936, 4096), (49152, 576), (1000, 72)]  # the last fills no tile


def made(num_rows: int, width: int) -> Int8Table:
    torch.manual_seed(0)
    return quantise_rows(torch.randn(num_rows, width, device=CARD) / width**0.5)


def relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return ((got.float() - right.float()).norm() / right.float().norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_lookup(num_rows: int, width: int, dtype: torch.dtype) -> None:
    table = made(num_rows, width)
    look_up = int8_lookup(table, dtype)
    for num_tokens in (1, 7, 8192):
        ids = torch.randint(num_rows, (num_tokens,), device=CARD)
        ids[-1] = num_rows - 1
        assert torch.equal(look_up(ids), lookup_reference(table, ids, dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("num_rows", "width"), SHAPES)
def test_product(num_rows: int, width: int, dtype: torch.dtype) -> None:
    table = made(num_rows, width)
    multiply = int8_product(table, dtype)
    for num_tokens in (1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 600):
        x = torch.randn(num_tokens, width, device=CARD).to(dtype)
        got, right = multiply(x), int8_reference(x.float(), table)
        assert got.shape == right.shape and got.dtype == dtype
        assert relative(got, right) < ROUNDINGS * relative(right.to(dtype), right) + SUMS, num_tokens


def test_every_number_is_widened_exactly() -> None:
    table = Int8Table(torch.arange(-128, 128, dtype=torch.int8, device=CARD).view(16, 16), torch.ones(16, device=CARD))
    for num_tokens in (1, 16):
        x = torch.eye(16, device=CARD)[:num_tokens].bfloat16()
        got = int8_product(table, torch.bfloat16)(x)
        assert torch.equal(got.float(), table.values.float().T[:num_tokens])


@pytest.mark.parametrize("num_tokens", [1, 64])
def test_a_graph_gives_what_eager_gives(num_tokens: int) -> None:
    table = made(4096, 512)
    look_up, multiply = int8_lookup(table, torch.bfloat16), int8_product(table, torch.bfloat16)
    ids = torch.randint(4096, (num_tokens,), device=CARD)
    eager = multiply(look_up(ids))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply(look_up(ids))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, eager)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_model_with_int8_tables(is_tied: bool, whole_prompt: Callable[[int], Batch]) -> None:
    spec = ModelSpec("tiny", 4096, 512, 2, 8, 4, 64, 1024, 512, has_tied_head=is_tied)
    dice = torch.Generator().manual_seed(3)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=dice) / shape[1] ** 0.5
        for name, shape in expected_shapes(spec).items()
    }
    logits, num_bytes = [], []
    quantised = replace(spec, quantization=MADE_HERE["fp8"])
    plain_tables = replace(spec, quantization=replace(MADE_HERE["fp8"], has_int8_tables=False))
    for one in (plain_tables, quantised):
        before = torch.cuda.memory_allocated()
        decoder = Decoder(one, torch.bfloat16, CARD)
        decoder.load(weights.items())
        num_bytes.append(torch.cuda.memory_allocated() - before)
        kv = allocate_kv(one, 16, 16, torch.bfloat16, CARD)
        logits.append(decoder.logits(decoder.forward(whole_prompt(3), kv)))
        del decoder, kv
    assert 0.001 < relative(logits[1], logits[0]) < 0.03  # rows rounded on both ends
    saved = kept_bytes(plain_tables, torch.bfloat16, CARD) - kept_bytes(quantised, torch.bfloat16, CARD)
    assert num_bytes[0] - num_bytes[1] == pytest.approx(saved, rel=0.02)
