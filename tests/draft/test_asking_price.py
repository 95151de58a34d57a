"""Who pays for an asking: the step, the one behind it, or the one that waits."""

import pytest

from threefold.cost import CostCurve
from threefold.draft.asking_price import AskingPrice

KNOTS = [(1, 10.0), (64, 20.0)]


def price_of(cost: CostCurve, **settings: bool) -> AskingPrice:
    return AskingPrice(cost, **{"has_rounds": False, "is_behind": False, **settings})


def test_where_drafts_are_looked_up_their_length_costs_nothing() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.5, draft_round_ms=0.3, draft_row_ms=0.01, draft_token_ms=0.2)
    price = price_of(cost)
    assert price.ms([8] * 4) == price.ms([1] * 4) == pytest.approx(0.54)
    assert price.row_ms(8) == pytest.approx(0.01)
    assert price.ms(()) == 0.0


def test_a_draft_models_passes_are_paid_by_the_longest() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.5, draft_round_ms=0.3, draft_row_ms=0.01, draft_token_ms=0.2)
    price = price_of(cost, has_rounds=True)
    assert price.ms([3, 1]) == pytest.approx(0.5 + 2 * 0.3 + 2 * 0.01 + 4 * 0.2)
    assert price.row_ms(3) == pytest.approx(0.01 + 3 * 0.2)


def test_a_single_asking_is_priced_when_the_step_behind_it_is_over() -> None:
    cost = CostCurve(KNOTS)
    price = price_of(cost)
    for _ in range(100):
        price.learn([4], 0.1)
        price.learn((), 0.9)
    assert price.ms([4]) == pytest.approx(1.0, rel=0.1)


def test_askings_one_behind_another_each_pay_their_own() -> None:
    cost = CostCurve(KNOTS)
    price = price_of(cost)
    for _ in range(100):
        price.learn([4], 1.0)
    assert price.ms([4]) == pytest.approx(1.0, rel=0.1)


def test_drafts_made_behind_a_step_are_paid_by_the_one_that_waits() -> None:
    cost = CostCurve(KNOTS)
    price = price_of(cost, is_behind=True)
    for _ in range(100):
        price.learn([4], 0.0)
        price.learn((), 1.0)
    assert price.ms([4]) == pytest.approx(1.0, rel=0.1)
