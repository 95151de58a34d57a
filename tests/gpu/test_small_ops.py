"""Norm, activation, most likely token and a step's integers on a card against their references, eager and replayed."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.activation import silu_mul, silu_mul_reference
from threefold.kernels.argmax import (
    most_likely_on_device,
    most_likely_reference,
    note_most_likely,
    note_most_likely_reference,
)
from threefold.kernels.norm import rms_norm, rms_norm_reference
from threefold.kernels.staged import unpack_step, unpack_step_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [40, 128, 576, 4096, 5000, 16384])
@pytest.mark.parametrize("num_tokens", [1, 33, 256, 3001])
@pytest.mark.parametrize("has_residual", [False, True])
def test_norm(dtype: torch.dtype, width: int, num_tokens: int, has_residual: bool) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(shape, device=CARD).to(dtype) for shape in ((num_tokens, width), (width,)))
    residual = torch.randn(num_tokens, width, device=CARD).to(dtype) if has_residual else None
    expected_residual = None if residual is None else residual.clone()
    expected = rms_norm_reference(x.clone(), expected_residual, weight, 1e-5)

    got = rms_norm(weight, 1e-5)(x, residual)

    torch.testing.assert_close(got, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    if residual is not None:
        assert torch.equal(residual, expected_residual)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("width", [24, 1536, 12288])
@pytest.mark.parametrize("num_tokens", [1, 33, 2048])
def test_activation(dtype: torch.dtype, width: int, num_tokens: int) -> None:
    torch.manual_seed(0)
    gate_up = (4 * torch.randn(num_tokens, 2 * width, device=CARD)).to(dtype)

    got = silu_mul(width, dtype, CARD)(gate_up)

    torch.testing.assert_close(got, silu_mul_reference(gate_up), rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 151_936), (256, 151_936), (7, 49_152), (3, 5)])
def test_most_likely(dtype: torch.dtype, rows: int, vocab: int) -> None:
    torch.manual_seed(0)
    logits = (3 * torch.randn(rows, vocab, device=CARD)).to(dtype)
    logits[0, vocab // 2] = float("nan")

    tokens, values = most_likely_on_device(logits)
    expected_tokens, expected_values = most_likely_reference(logits)

    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 49_152), (64, 151_936), (3, 5)])
def test_most_likely_tokens_are_noted_and_packed(rows: int, vocab: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(rows, vocab, device=CARD)
    places = torch.randperm(2 * rows, device=CARD)[:rows]
    noted, expected_noted = torch.zeros(2, 2 * rows, dtype=torch.int64, device=CARD)

    made = note_most_likely(logits, places, noted)

    for one, other in zip(made, note_most_likely_reference(logits, places, expected_noted), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(noted, expected_noted)


@pytest.mark.parametrize(("num_tokens", "num_rows", "width"), [(1, 1, 130), (64, 64, 513), (2048, 200, 2560)])
def test_a_steps_integers(num_tokens: int, num_rows: int, width: int) -> None:
    torch.manual_seed(0)
    staged = torch.randint(-300, 50_000, (5 * num_tokens + 3,), dtype=torch.int32, device=CARD)
    row_ids = torch.randint(0, 256, (num_rows,), dtype=torch.int32, device=CARD)
    tokens = torch.randint(0, 50_000, (300,), device=CARD)
    tables = torch.randint(0, 9999, (256, width), dtype=torch.int32, device=CARD)
    given = (staged, num_tokens, row_ids, tokens, tables)

    for one, other in zip(unpack_step(*given), unpack_step_reference(*given), strict=True):
        assert torch.equal(one, other)


def test_graph_replays_follow_their_inputs() -> None:
    weight = torch.randn(576, device=CARD).bfloat16()
    normalise, multiply = rms_norm(weight, 1e-5), silu_mul(288, torch.bfloat16, CARD)
    x, residual = torch.randn(2, 64, 576, device=CARD).bfloat16().unbind(0)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        tokens, _ = most_likely_on_device(x)
        return multiply(normalise(x, residual)), tokens

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed, tokens = work()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(64, 576))
        residual.copy_(torch.randn(64, 576))
        expected = silu_mul_reference(rms_norm_reference(x.clone(), residual.clone(), weight, 1e-5))
        graph.replay()
        torch.testing.assert_close(replayed, expected, rtol=2e-2, atol=2e-2)
        assert torch.equal(tokens, x.argmax(-1))
