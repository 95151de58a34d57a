"""The draw on a card: the torch body's tokens wherever rounding decides nothing, at a real vocabulary, in a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from threefold.sample.draw import DeviceFilters, _floors, draw, draw_on_device, draw_torch
from threefold.sample.native import Filters

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
MARGIN = 1e-5


def filters(num_rows, top_k=0, top_p=1.0, min_p=0.0):
    return Filters(
        np.full(num_rows, top_k, dtype=np.int64),
        np.full(num_rows, top_p, dtype=np.float32),
        np.full(num_rows, min_p, dtype=np.float32),
    )


def ends(logits, temperature, chosen, uniforms):
    """The least and the largest id that numbers and filters within MARGIN of each row's own would give.

    The draw goes by ids in their order, so what a number between two others gives lies between what they give.
    """
    near = []
    for shift in (-MARGIN, MARGIN):
        for share in (1 - MARGIN, 1 + MARGIN):
            top_p = np.where(chosen.top_p < 1, np.minimum(chosen.top_p * np.float32(share), np.float32(0.9999999)), 1)
            moved = chosen._replace(top_p=top_p.astype(np.float32), min_p=chosen.min_p * np.float32(share))
            near.append(draw_torch(logits, temperature, moved, np.clip(uniforms + shift, 0, 1 - 2.0**-53)))
    return np.min(near, axis=0), np.max(near, axis=0)


@pytest.mark.parametrize("vocab", [5, 2049, 49_152, 151_936])
@pytest.mark.parametrize("spread", [0.01, 3.0, 12.0])
@pytest.mark.parametrize(
    "wishes",
    [{}, {"top_k": 1}, {"top_k": 50}, {"top_k": 3000}, {"top_p": 0.9}, {"top_p": 0.999}, {"min_p": 0.05},
     {"top_k": 50, "top_p": 0.95}, {"top_k": 40, "top_p": 0.9, "min_p": 0.02}],
)  # fmt: skip
def test_tokens_are_those_of_the_torch_body(vocab, spread, wishes):
    dice = np.random.default_rng(7)
    num = 12
    logits = torch.from_numpy(dice.standard_normal((num, vocab)).astype(np.float32) * np.float32(spread)).to(CARD)
    temperature = dice.choice([0.3, 1.0, 2.0], num).astype(np.float32)
    uniforms, chosen = dice.random(num), filters(num, **wishes)
    got = draw(logits, temperature, chosen, uniforms)
    least, largest = ends(logits, temperature, chosen, uniforms)
    # Where thousands of logits are nearly equal, probabilities are tied that logits tell apart, and kept with the last.
    slack = vocab // 1000 if spread < 1 else 0
    assert ((least - slack <= got) & (got <= largest + slack)).all()
    probabilities = torch.softmax(logits / torch.from_numpy(temperature).to(CARD).unsqueeze(1), -1)
    drawn = probabilities.gather(1, torch.from_numpy(got).to(CARD).unsqueeze(1))
    assert (drawn >= _floors(probabilities, chosen) * (1 - 1e-4)).all()


def test_frequencies_are_those_of_the_distribution():
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(3)).to(CARD) * 2
    num = 5000
    uniforms = (np.arange(num) + 0.5) / num
    tokens = draw(logits.expand(num, -1).contiguous(), np.full(num, 1.3, dtype=np.float32), filters(num), uniforms)
    expected = torch.softmax(logits.double() / 1.3, -1)[0].cpu().numpy() * num
    assert np.abs(np.bincount(tokens, minlength=1000) - expected).max() <= 2


def test_a_row_is_drawn_the_same_in_any_batch():
    logits = torch.randn(64, 151_936, device=CARD) * 3
    temperature, uniforms = np.full(64, 0.8, dtype=np.float32), np.linspace(0, 0.99, 64)
    chosen = filters(64, 50, 0.95)
    together = draw(logits, temperature, chosen, uniforms).tolist()
    for i in (0, 31, 63):
        one = Filters(*(part[i : i + 1] for part in chosen))
        assert [together[i]] == draw(logits[i : i + 1], temperature[:1], one, uniforms[i : i + 1]).tolist()


def test_a_graph_draws_greedy_and_sampled_rows_side_by_side():
    num = 8
    logits = torch.randn(num, 49_152, device=CARD) * 3
    temperature = torch.tensor([0.0, 1.0] * 4, device=CARD)
    uniforms = torch.zeros(num, dtype=torch.float64, device=CARD)
    wishes = DeviceFilters(
        torch.full((num,), 20, dtype=torch.int32, device=CARD),
        torch.full((num,), 0.9, device=CARD),
        torch.zeros(num, device=CARD),
    )
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        draw_on_device(logits, temperature, wishes, uniforms)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = draw_on_device(logits, temperature, wishes, uniforms)
    for seed in range(4):
        torch.manual_seed(seed)
        logits.copy_(torch.randn(num, 49_152) * 3)
        uniforms.copy_(torch.rand(num, dtype=torch.float64))
        graph.replay()
        assert torch.equal(tokens[::2], logits[::2].argmax(-1))
        sampled = draw(
            logits[1::2].contiguous(), np.ones(4, dtype=np.float32), filters(4, 20, 0.9), uniforms[1::2].cpu().numpy()
        )
        assert tokens[1::2].tolist() == sampled.tolist()


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), float("inf")])
def test_a_row_that_cannot_be_drawn_from_gives_some_token(value):
    logits = torch.full((4, 151_936), value, device=CARD)
    chosen = Filters(np.array([0, 3, 0, 0]), np.array([1, 1, 0.5, 1], np.float32), np.array([0, 0, 0, 0.5], np.float32))
    tokens = draw(logits, np.ones(4, dtype=np.float32), chosen, np.full(4, 0.5))
    assert ((tokens >= 0) & (tokens < 151_936)).all()
