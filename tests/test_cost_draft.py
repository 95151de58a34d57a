"""What asking for drafts costs, learned from askings that say something new."""

from __future__ import annotations

import pytest

from threefold.cost_draft import DraftCost


def test_rounds_rows_and_tokens_add_up() -> None:
    cost = DraftCost((0.5, 0.25, 0.01, 0.002), 10.0)
    assert cost.ms(4, 16, 4) == pytest.approx(0.5 + 3 * 0.25 + 4 * 0.01 + 16 * 0.002)
    assert cost.ms(1, 4, 0) == pytest.approx(0.01 + 4 * 0.002), "what a row adds to an asking that happens anyway"


def test_what_was_expected_teaches_nothing() -> None:
    cost = DraftCost((0.5, 0.25, 0.01, 0.002), 10.0)
    before = cost.figures
    cost.observe(4, 16, 4, 1.02 * cost.ms(4, 16, 4))
    assert cost.figures == before


def test_no_figure_becomes_negative() -> None:
    cost = DraftCost((0.5, 0.25, 0.01, 0.002), 10.0)
    for _ in range(50):
        cost.observe(64, 0, 1, 0.0)
        cost.observe(1, 8, 8, 3.0)
    assert min(cost.figures) >= 0.0
    assert cost.ms(64, 0, 1) < 0.3


def test_nothing_known_is_told_from_something() -> None:
    cost = DraftCost((0.0, 0.0, 0.0, 0.0), 10.0)
    assert not cost.is_known
    cost.set_figures((0.1, 0.0, 0.0, 0.0), 10.0)
    assert cost.is_known
