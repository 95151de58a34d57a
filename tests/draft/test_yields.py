import numpy as np
import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.yields import DraftYield, even_chance

KNOTS = [(1, 4.0), (64, 4.3), (128, 4.6), (256, 6.5), (512, 11.8), (2048, 44.8)]
SHAPES = {n: StepShape(n, n, 0) for n in (1, 16, 64, 256)}


def taught(chance: float, num_asks: int = 300, length: int = 8) -> DraftYield:
    draft_yield = DraftYield(8)
    survival = np.zeros((1, 8))
    survival[0, :length] = chance ** np.arange(1, length + 1)
    for _ in range(num_asks):
        draft_yield.learn([length], survival)
    return draft_yield


def best_length(draft_yield: DraftYield, num_rows: int, cost: CostCurve) -> int:
    return draft_yield.outlook(num_rows, num_rows, cost, SHAPES[num_rows]).length


def test_good_drafts_are_asked_long_and_bad_ones_not_at_all() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    lengths = [best_length(taught(chance), 1, cost) for chance in (0.05, 0.5, 0.8, 0.97)]
    assert lengths[0] == 0
    assert lengths == sorted(lengths)
    assert lengths[-1] == 8


def test_load_shortens_the_draft() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    draft_yield = taught(0.8)
    lengths = [best_length(draft_yield, n, cost) for n in (1, 16, 64, 256)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0


def test_drafting_that_costs_nothing_is_asked_for_all_of_it() -> None:
    assert best_length(taught(0.9), 1, CostCurve(KNOTS)) == 8


def test_misses_count() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    draft_yield = taught(0.8)
    draft_yield.miss([8] * 2000)
    assert best_length(draft_yield, 1, cost) == 0


def test_longer_drafts_than_ever_asked_for_are_judged_by_the_shorter() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.3, draft_round_ms=0.3)
    assert best_length(taught(0.95, length=2), 1, cost) > 4
    assert best_length(taught(0.3, length=2), 1, cost) <= 2


@pytest.mark.parametrize("num_rows", [1, 64])
def test_nothing_known_is_a_hopeful_guess(num_rows: int) -> None:
    assert best_length(DraftYield(8), num_rows, CostCurve(KNOTS, draft_start_ms=0.3, draft_round_ms=0.3)) > 0


def test_a_gain_within_what_nobody_knows_is_none() -> None:
    """At 64 rows the first draft of each costs 0.78 ms and a token 0.79: less than one in a hundred to be had."""
    cost = CostCurve([(1, 10.0), (64, 50.0), (256, 200.0)])
    assert best_length(taught(0.97, length=1), 64, cost) == 0
    assert best_length(taught(0.97, length=1), 1, cost) > 0


def test_what_verifying_takes_is_the_floor_under_a_drafts_worth() -> None:
    proportional = CostCurve([(1, 1.0), (1024, 1024.0)])
    crowded = taught(0.8).outlook(64, 64, proportional, SHAPES[64])
    alone = taught(0.8).outlook(1, 1, CostCurve([(1, 10.0), (64, 10.1)]), SHAPES[1])
    assert crowded.floor == pytest.approx(1.0, abs=0.01)
    assert crowded.worth == 0.0
    assert alone.floor < 0.01
    assert alone.worth == pytest.approx(sum(0.8**i for i in range(1, 9)), rel=0.1)


def test_verification_has_the_last_word_on_what_was_promised() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    draft_yield = taught(0.8)
    for _ in range(50):
        draft_yield.judge(np.array([[0.8, 0.6] + [0.0] * 6, [0.0] * 8]))
    assert draft_yield.outlook(1, 1, cost, SHAPES[1]).length == 0


def test_each_position_is_judged_by_itself() -> None:
    """The first two drafts always pass and the others never: that many are worth asking for, and no more."""
    cost = CostCurve([(1, 8.0), (64, 8.4), (512, 16.0), (1024, 25.0)], draft_start_ms=1.0, draft_round_ms=1.0)
    draft_yield = taught(0.7)
    shape = StepShape(256, 256, 256 * 200)
    before = draft_yield.outlook(256, 256, cost, shape)
    promised = [256 * 0.7**position for position in range(1, 5)]
    draft_yield.judge(np.array([[*promised, *[0.0] * 4], [256, 256, 0, 0, *[0.0] * 4]]))
    outlook = draft_yield.outlook(256, 256, cost, shape)
    assert outlook.best == outlook.length == 2
    assert outlook.ratios[1] > 1.1 * before.ratios[1]
    assert outlook.ratios[1] > outlook.ratios[2] > outlook.ratios[3]


def test_looking_up_is_expected_to_find_something_half_of_the_time() -> None:
    cost = CostCurve([(1, 0.9), (64, 1.1), (256, 1.9)], draft_start_ms=0.5, draft_round_ms=0.0)
    looked_up, modelled = (DraftYield(8, has_rounds=has_rounds) for has_rounds in (False, True))
    assert looked_up.outlook(1, 1, cost, SHAPES[1]).worth < 0.6 * modelled.outlook(1, 1, cost, SHAPES[1]).worth


def test_a_draft_model_that_was_tried_out_is_judged_by_that() -> None:
    cost = CostCurve(KNOTS, draft_start_ms=0.9, draft_round_ms=0.9)
    assert best_length(DraftYield(8, prior_chance=0.1), 1, cost) == 0
    assert best_length(DraftYield(8, prior_chance=0.95), 1, cost) > 4


@pytest.mark.parametrize(("num_accepted", "chance"), [(0.0, 0.0), (0.75, 0.5), (1.92, 0.8), (2.0, 1.0)])
def test_the_even_chance_of_a_trial(num_accepted: float, chance: float) -> None:
    """Of one or two drafts: 0.5 + 0.25 = 0.75."""
    max_draft = 2 if num_accepted != 1.92 else 3
    assert even_chance(num_accepted, max_draft) == pytest.approx(chance, abs=0.02)


def test_drafts_that_few_rows_have_count_for_less_where_each_rows_speed_counts() -> None:
    outlook = taught(0.8).outlook(1, 1, CostCurve([(1, 10.0), (64, 10.1)]), SHAPES[1])
    assert outlook.ratios[outlook.best - 1] == pytest.approx(1.0 + outlook.accepted, rel=0.02), "steps take as long"
    assert outlook.shared(1.0).ratios == pytest.approx(outlook.ratios)
    gone = outlook.shared(0.0)
    assert gone.length == 0
    assert gone.ratios * (1.0 + outlook.accepted) == pytest.approx(outlook.ratios)
