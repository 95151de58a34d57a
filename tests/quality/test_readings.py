import math

import numpy as np
import pytest

from threefold.quality.readings import LEAST_PIECES, Readings


def piece(surprise_a, surprise_b, divergence=0.0, agrees=1.0, num=1):
    return np.tile(np.array([[surprise_a], [surprise_b], [divergence], [agrees]], dtype=np.float32), (1, num))


def test_a_piece_counts_by_its_tokens():
    readings = Readings()
    readings.add(piece(1.0, 2.0, 0.1, 1.0, num=3))
    readings.add(piece(3.0, 2.0, 0.5, 0.0, num=1))
    assert readings.means == pytest.approx([1.5, 2.0, 0.2, 0.75])
    found = readings.summary()
    assert found.perplexity_a.value == pytest.approx(math.exp(1.5))
    assert found.perplexity_change.value == pytest.approx(math.exp(0.5) - 1)
    assert found.divergence.value == pytest.approx(0.2)
    assert found.disagreement.value == pytest.approx(0.25)
    assert (found.num_tokens, found.num_pieces) == (4, 2)


def test_few_pieces_give_no_interval():
    readings = Readings()
    for _ in range(LEAST_PIECES - 1):
        readings.add(piece(1.0, 1.0))
    assert readings.summary().divergence == (0.0, None, None)
    readings.add(piece(1.0, 1.0))
    assert readings.summary().divergence == (0.0, 0.0, 0.0)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(3)
    num_held = 0
    for repetition in range(60):
        readings = Readings()
        for _ in range(40):
            own = generator.normal(2.0, 0.5)  # what the tokens of one text share
            noise = generator.normal(0.0, 1.0, 20)
            figures = np.stack([own + noise, own + noise, np.zeros(20), np.ones(20)])
            readings.add(figures.astype(np.float32))
        found = readings.summary(repetition).perplexity_a
        num_held += found.low <= math.exp(2.0) <= found.high
    assert 50 <= num_held <= 60


def test_the_change_is_surer_than_its_parts():
    generator = np.random.default_rng(4)
    readings = Readings()
    for _ in range(30):
        own = generator.normal(2.0, 0.5)
        readings.add(piece(own, own + 0.01 + generator.normal(0, 0.001), num=10))
    found = readings.summary()
    assert found.perplexity_change.low > 0
    assert found.perplexity_a.high - found.perplexity_a.low > 1


def test_figures_become_plain_data():
    readings = Readings()
    readings.add(piece(1.0, 1.0))
    found = readings.summary().to_dict()
    assert found["perplexity_a"] == {"value": pytest.approx(math.e), "low": None, "high": None}
    assert found["num_tokens"] == 1
