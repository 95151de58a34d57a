"""Triton's draw, interpreted, against sample/draw.py's torch body: the same token wherever rounding decides nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold.kernels.triton import draw as body
from threefold.kernels.triton.draw import draw_body
from threefold.sample.draw import _floors, draw_torch
from threefold.sample.native import Filters

MARGIN = 1e-5


def filters(num_rows, top_k=0, top_p=1.0, min_p=0.0):
    return Filters(
        np.full(num_rows, top_k, dtype=np.int64),
        np.full(num_rows, top_p, dtype=np.float32),
        np.full(num_rows, min_p, dtype=np.float32),
    )


def drawn(logits, temperature, chosen, uniforms):
    arrays = (temperature, chosen.top_k.astype(np.int32), chosen.top_p, chosen.min_p, uniforms)
    return draw_body(logits, *(torch.from_numpy(np.asarray(array)) for array in arrays)).tolist()


def possible(logits, temperature, chosen, uniforms):
    """For each row the tokens that numbers and filters within MARGIN of its own would give."""
    near = []
    for shift in (-MARGIN, 0.0, MARGIN):
        for share in (1 - MARGIN, 1.0, 1 + MARGIN):
            top_p = np.where(chosen.top_p < 1, np.minimum(chosen.top_p * np.float32(share), np.float32(0.9999999)), 1)
            moved = chosen._replace(top_p=top_p.astype(np.float32), min_p=chosen.min_p * np.float32(share))
            near.append(draw_torch(logits, temperature, moved, np.clip(uniforms + shift, 0, 1 - 2.0**-53)))
    return [set(tokens) for tokens in np.stack(near, axis=1).tolist()]


@settings(max_examples=25, deadline=None)
@given(
    vocab=st.sampled_from([1, 2, 7, 255, 1500, 2049, 5000]),
    spread=st.sampled_from([0.0, 1.0, 6.0, 40.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 256, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    capacity=st.sampled_from([4, 8192]),
    seed=st.integers(0, 2**32),
)
def test_tokens_are_those_of_the_torch_body(vocab, spread, top_k, top_p, min_p, capacity, seed):
    dice = np.random.default_rng(seed)
    logits = torch.from_numpy(dice.standard_normal((2, vocab)).astype(np.float32) * np.float32(spread))
    temperature = dice.choice([0.2, 1.0, 3.0], 2).astype(np.float32)
    uniforms, chosen = dice.random(2), filters(2, top_k, top_p, min_p)
    allowed = possible(logits, temperature, chosen, uniforms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "CAPACITY", capacity)  # with little room the row itself is searched
        got = drawn(logits, temperature, chosen, uniforms)
    assert all(token in tokens for token, tokens in zip(got, allowed, strict=True)), (got, allowed)


def test_top_p_is_a_share_of_all_that_min_p_keeps():
    """A flat row: many tokens weigh less than top_p alone would need, and more than min_p asks."""
    logits = torch.randn(1, 255, generator=torch.Generator().manual_seed(3)).repeat(16, 1)
    temperature, uniforms = np.ones(16, dtype=np.float32), np.linspace(0.03, 0.97, 16)
    for top_p in (0.5, 0.9):
        chosen = filters(16, top_p=top_p, min_p=0.01)
        allowed = possible(logits, temperature, chosen, uniforms)
        got = drawn(logits, temperature, chosen, uniforms)
        assert all(token in tokens for token, tokens in zip(got, allowed, strict=True)), (got, allowed)


def test_the_ends_of_the_unit_interval_stay_inside():
    logits = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]]).log().repeat(2, 1)
    ends = np.array([0.0, 1.0 - 2.0**-53])
    for chosen in (filters(2), filters(2, top_k=4), filters(2, top_p=0.99), filters(2, min_p=0.1)):
        assert [1, 3] == drawn(logits, np.ones(2, dtype=np.float32), chosen, ends)


def test_tokens_tied_with_the_last_one_kept_are_kept():
    logits = torch.tensor([[0.1, 0.3, 0.3, 0.3]]).log().repeat(12, 1)
    numbers = np.linspace(0, 1, 12, endpoint=False)
    for chosen in (filters(12, top_k=2), filters(12, top_p=0.5), filters(12, min_p=1.0)):
        assert {1, 2, 3} == set(drawn(logits, np.ones(12, dtype=np.float32), chosen, numbers))


def test_rows_have_filters_of_their_own_and_do_not_see_each_other():
    logits = torch.tensor([[0.4, 0.35, 0.25]]).log().repeat(5, 1)
    chosen = Filters(
        np.array([0, 1, 0, 0, 2]),
        np.array([1, 1, 0.5, 1, 1], dtype=np.float32),
        np.array([0, 0, 0, 0.9, 0], dtype=np.float32),
    )
    temperature, uniforms = np.ones(5, dtype=np.float32), np.full(5, 0.99)
    together = drawn(logits, temperature, chosen, uniforms)
    alone = [
        drawn(logits[i : i + 1], temperature[:1], Filters(*(part[i : i + 1] for part in chosen)), uniforms[:1])[0]
        for i in range(5)
    ]
    assert [2, 0, 1, 0, 1] == together == alone


def test_no_temperature_means_the_most_likely_token_whatever_the_filters():
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    logits[1, [7, 200]] = 9.0
    expected = logits.argmax(-1).tolist()
    assert expected[1] == 7
    for chosen in (filters(3), filters(3, top_k=50, top_p=0.9, min_p=0.01)):
        assert expected == drawn(logits, np.zeros(3, dtype=np.float32), chosen, np.full(3, 0.999))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [float("-inf"), float("nan"), float("inf")])
@pytest.mark.parametrize("chosen", [filters(1), filters(1, top_k=3), filters(1, top_p=0.5), filters(1, min_p=0.5)])
def test_a_row_that_cannot_be_drawn_from_gives_some_token_of_the_vocabulary(value, chosen):
    token = drawn(torch.full((1, 5000), value), np.ones(1, dtype=np.float32), chosen, np.full(1, 0.5))[0]
    assert 0 <= token < 5000


def test_frequencies_are_those_of_the_filtered_distribution():
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3)) * 2
    num = 20
    uniforms = (np.arange(num) + 0.5) / num  # evenly spread, so that counts may be off by one at each border alone
    chosen = filters(num, top_k=7, top_p=0.95, min_p=0.01)
    tokens = drawn(logits.repeat(num, 1), np.full(num, 1.3, dtype=np.float32), chosen, uniforms)
    probabilities = torch.softmax(logits / 1.3, -1)
    kept = probabilities * (probabilities >= _floors(probabilities, filters(1, 7, 0.95, 0.01)))
    expected = (kept / kept.sum())[0].numpy() * num
    assert np.abs(np.bincount(tokens, minlength=12) - expected).max() <= 1.0


def test_no_rows_give_no_tokens():
    assert [] == drawn(torch.empty(0, 9), np.ones(0, dtype=np.float32), filters(0), np.empty(0))
