from __future__ import annotations

import numpy as np
import pytest

from threefold.sample.verify import ExactAcceptance, SyntheticAcceptance


@pytest.mark.parametrize(
    ("drafts", "drawn", "accepted"),
    [([1, 2, 3], [1, 2, 3, 4], 3), ([1, 2, 3], [1, 9, 3, 4], 1), ([1], [2, 1], 0), ([], [5], 0)],
)
def test_drafts_hold_up_to_the_first_that_was_not_drawn(drafts, drawn, accepted):
    assert ExactAcceptance().num_accepted(drafts, drawn, seed=0, output_position=0) == accepted


def test_synthetic_acceptance_reaches_its_rates_whatever_is_drawn():
    rates = (0.8, 0.5, 0.1)
    rule = SyntheticAcceptance(rates)
    counts = np.array([rule.num_accepted([1] * 5, [2] * 6, seed, 7) for seed in range(4000)])
    for position, rate in enumerate(rates):
        assert (counts > position).mean() == pytest.approx(rate, abs=0.03)
    assert counts.max() == 3


def test_synthetic_acceptance_is_repeatable_and_bounded_by_the_drafts():
    rule = SyntheticAcceptance((1.0, 1.0, 1.0))
    assert rule.num_accepted([1, 2], [0, 0, 0], seed=-5, output_position=3) == 2
    assert SyntheticAcceptance(()).num_accepted([1, 2], [0, 0, 0], seed=1, output_position=0) == 0
