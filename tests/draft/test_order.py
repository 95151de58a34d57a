"""Numbers in falling order, few or many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.draft.order import FEW, falling


@pytest.mark.parametrize("num_values", [0, 1, FEW - 1, FEW, 1000])
def test_they_fall_as_far_as_they_are_told_apart(num_values: int) -> None:
    dice = np.random.default_rng(num_values)
    values = dice.uniform(0.0, 1.0, num_values) ** 8 - dice.uniform(0.0, 0.1, num_values)
    order = falling(values)
    assert sorted(order.tolist()) == list(range(num_values))
    rises = np.diff(values[order])
    assert np.all(rises <= np.abs(values[order][:-1]) / 8000)


@given(st.lists(st.floats(1e-12, 1.0) | st.floats(-10.0, -1e-12), min_size=FEW, max_size=3 * FEW))
def test_so_do_the_strangest(numbers: list[float]) -> None:
    values = np.array(numbers)
    fallen = values[falling(values)]
    assert np.all(np.diff(fallen) <= np.abs(fallen[:-1]) / 4000)


def test_a_row_keeps_its_order() -> None:
    """Drafts that hardly differ, one behind the other in each row."""
    survival = np.array([0.5 * (1.0 - 1e-6) ** np.arange(8)] * 50)
    order = falling(survival.ravel())
    for row in range(50):
        assert (order[order // 8 == row] % 8).tolist() == list(range(8))
