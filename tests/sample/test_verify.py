from __future__ import annotations

import numpy as np
import pytest

from threefold.sample.verify import ExactAcceptance, SyntheticAcceptance, count_committed, num_common


def decreed(rates, num_drafts, seeds, position):
    """Of as many rows as there are seeds."""
    num = len(seeds)
    seeds = np.array([seed % 2**64 for seed in seeds], dtype=np.uint64)
    return SyntheticAcceptance(rates).decreed(np.full(num, num_drafts), seeds, np.full(num, position))


@pytest.mark.parametrize(
    ("drafts", "drawn", "accepted"),
    [([1, 2, 3], [1, 2, 3, 4], 3), ([1, 2, 3], [1, 9, 3, 4], 1), ([1], [2, 1], 0), ([], [5], 0)],
)
def test_drafts_hold_up_to_the_first_that_was_not_drawn(drafts, drawn, accepted):
    assert num_common(drafts, drawn) == accepted
    num_drafts, one = np.array([len(drafts)]), np.ones(1, dtype=np.int64)
    assert ExactAcceptance().decreed(num_drafts, one.astype(np.uint64), one) is None


def test_rows_of_any_number_of_drafts_are_counted_at_once():
    drawn = np.array([1, 2, 3, 4, 5, 6, 9, 8])
    values = np.ones(8, dtype=np.float32)
    first, num_drafts, draft_ids = np.array([0, 4, 5]), np.array([3, 0, 2]), np.array([1, 2, 9, 6, 7])
    counts, is_sound = count_committed(drawn, values, first, num_drafts, draft_ids)
    assert counts.tolist() == [3, 1, 2]
    assert is_sound
    for wrong in (np.nan, np.inf, -np.inf):
        values[7] = wrong
        assert not count_committed(drawn, values, first, num_drafts, draft_ids)[1]


def test_synthetic_acceptance_reaches_its_rates_whatever_is_drawn():
    rates = (0.8, 0.5, 0.1)
    counts = decreed(rates, 5, range(4000), 7)
    for position, rate in enumerate(rates):
        assert (counts > position).mean() == pytest.approx(rate, abs=0.03)
    assert counts.max() == 3


def test_synthetic_acceptance_is_repeatable_and_bounded_by_the_drafts():
    assert decreed((1.0, 1.0, 1.0), 2, [-5], 3).tolist() == [2]
    assert decreed((), 2, [1], 0).tolist() == [0]
    assert decreed((0.5,), 1, [3, 4, 3], 9)[[0, 2]].tolist() == [decreed((0.5,), 1, [3], 9)[0]] * 2
