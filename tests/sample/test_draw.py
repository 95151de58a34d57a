from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold.sample.draw import draw, draw_torch, warm_up
from threefold.sample.native import Filters, draw_rows


def filters(num_rows, top_k=0, top_p=1.0, min_p=0.0):
    return Filters(
        np.full(num_rows, top_k, dtype=np.int64),
        np.full(num_rows, top_p, dtype=np.float32),
        np.full(num_rows, min_p, dtype=np.float32),
    )


def ones(num_rows):
    return np.ones(num_rows, dtype=np.float32)


def by_definition(p, top_k, top_p, min_p, uniform):
    kept = p >= np.float32(min_p) * p.max()
    if 0 < top_k < len(p):
        kept &= p >= np.sort(p)[-top_k]
    mass = np.sort(p[kept].astype(np.float64))[::-1].cumsum()
    if top_p < 1:
        enough = int(np.searchsorted(mass, float(np.float32(top_p)) * mass[-1]))
        kept &= p >= np.sort(p[kept])[::-1][min(enough, len(mass) - 1)]
    cdf = (p.astype(np.float64) * kept).cumsum()
    return int(np.searchsorted(cdf, uniform * cdf[-1], side="right"))


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.sampled_from([1, 2, 7, 255, 256, 257, 1500]),
    spread=st.sampled_from([0.0, 1.0, 6.0, 40.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 256, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_both_bodies_follow_the_definition(vocab, spread, top_k, top_p, min_p, seed):
    dice = np.random.default_rng(seed)
    logits = torch.from_numpy(dice.standard_normal((4, vocab)).astype(np.float32) * np.float32(spread))
    temperature = dice.choice([0.2, 1.0, 3.0], 4).astype(np.float32)
    probabilities = torch.softmax(logits / torch.from_numpy(temperature).unsqueeze(1), -1)
    uniforms = dice.random(4)
    chosen = filters(4, top_k, top_p, min_p)
    wanted = [
        by_definition(row, top_k, top_p, min_p, uniform)
        for row, uniform in zip(probabilities.numpy(), uniforms, strict=True)
    ]
    assert draw(logits, temperature, chosen, uniforms).tolist() == wanted
    assert draw_torch(logits, temperature, chosen, uniforms).tolist() == wanted


@pytest.mark.parametrize("body", [draw, draw_torch])
def test_the_ends_of_the_unit_interval_stay_inside(body):
    logits = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).log().repeat(2, 1)
    assert body(logits, ones(2), filters(2), np.array([0.0, 1.0 - 2.0**-53])).tolist() == [1, 3]


@pytest.mark.parametrize("body", [draw, draw_torch])
def test_tokens_tied_with_the_last_one_kept_are_kept(body):
    logits = torch.tensor([[0.1, 0.3, 0.3, 0.3]]).log().repeat(300, 1)
    numbers = np.linspace(0, 1, 300, endpoint=False)
    for chosen in (filters(300, top_k=2), filters(300, top_p=0.5), filters(300, min_p=1.0)):
        assert set(body(logits, ones(300), chosen, numbers).tolist()) == {1, 2, 3}


@pytest.mark.parametrize("body", [draw, draw_torch])
def test_rows_have_filters_of_their_own(body):
    logits = torch.tensor([[0.4, 0.35, 0.25]]).log().repeat(4, 1)
    chosen = Filters(
        np.array([0, 1, 0, 0]), np.array([1, 1, 0.5, 1], dtype=np.float32), np.array([0, 0, 0, 0.9], dtype=np.float32)
    )
    assert body(logits, ones(4), chosen, np.full(4, 0.99)).tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("body", [draw, draw_torch])
def test_no_rows_give_no_tokens(body):
    assert body(torch.empty(0, 9), ones(0), filters(0), np.empty(0)).tolist() == []


def test_one_compiled_form_serves_every_layout():
    warm_up()
    compiled = list(draw_rows.signatures)
    transposed = torch.randn(9, 4).t()
    assert draw(transposed, ones(4), filters(4, top_k=3, top_p=0.9, min_p=0.1), np.full(4, 0.5)).shape == (4,)
    assert list(draw_rows.signatures) == compiled
