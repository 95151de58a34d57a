import numpy as np
import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.yields import DraftYield

KNOTS = [(1, 4.0), (64, 4.3), (128, 4.6), (256, 6.5), (512, 11.8), (2048, 44.8)]
SHAPES = {n: StepShape(n, n, 0) for n in (1, 16, 64, 256)}


def taught(chance: float, num_asks: int = 300, length: int = 8) -> DraftYield:
    draft_yield = DraftYield(8)
    survival = np.zeros((1, 8))
    survival[0, :length] = chance ** np.arange(1, length + 1)
    for _ in range(num_asks):
        draft_yield.learn([length], survival)
    return draft_yield


def test_good_drafts_are_asked_long_and_bad_ones_not_at_all() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    lengths = [taught(chance).best_length(1, cost, SHAPES[1]) for chance in (0.05, 0.5, 0.8, 0.97)]
    assert lengths[0] == 0
    assert lengths == sorted(lengths)
    assert lengths[-1] == 8


def test_load_shortens_the_draft() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    draft_yield = taught(0.8)
    lengths = [draft_yield.best_length(n, cost, SHAPES[n]) for n in (1, 16, 64, 256)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0


def test_drafting_that_costs_nothing_is_asked_for_all_of_it() -> None:
    assert taught(0.9).best_length(1, CostCurve(KNOTS), SHAPES[1]) == 8


def test_misses_count() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    draft_yield = taught(0.8)
    draft_yield.miss([8] * 2000)
    assert draft_yield.best_length(1, cost, SHAPES[1]) == 0


def test_longer_drafts_than_ever_asked_for_are_judged_by_the_shorter() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.3, draft_round_ms=0.3)
    assert taught(0.95, length=2).best_length(1, cost, SHAPES[1]) > 4
    assert taught(0.3, length=2).best_length(1, cost, SHAPES[1]) <= 2


@pytest.mark.parametrize("num_rows", [1, 64])
def test_nothing_known_is_a_hopeful_guess(num_rows: int) -> None:
    assert (
        DraftYield(8).best_length(num_rows, CostCurve(KNOTS, draft_start_ms=0.3, draft_round_ms=0.3), SHAPES[num_rows])
        > 0
    )
