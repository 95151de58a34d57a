import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.cost import CostCurve, StepShape
from threefold.draft.admit import LEAST_GAIN, admit

PLATEAU = CostCurve([(1, 13.0), (8, 13.2), (16, 18.6), (32, 29.7), (64, 50.0), (128, 91.0), (256, 175.0)])
PROPORTIONAL = CostCurve([(1, 1.0), (1024, 1024.0)])


def counts_of(survival: list[list[float]], cost: CostCurve, num_rows: int | None = None, **options) -> list[int]:
    rows = len(survival)
    committing = num_rows or rows
    shape = options.pop("shape", StepShape(committing, committing, 100 * committing))
    admission = admit(np.array(survival), cost, shape, num_committing=committing, **options)
    return admission.counts(admission.best, rows).tolist()


def test_a_plateau_is_filled_and_the_jump_behind_it_left() -> None:
    assert counts_of([[0.5**i for i in range(1, 16)]], PLATEAU) == [7]


def test_a_jump_is_taken_when_what_lies_behind_it_pays() -> None:
    """Hill climbing would stop before it: the first draft costs 3 ms, the next nineteen nothing."""
    curve = CostCurve([(1, 10.0), (2, 13.0), (21, 13.2), (22, 40.0)])
    assert counts_of([[0.95**i for i in range(1, 25)]], curve) == [20]
    assert counts_of([[0.05, 0.04]], curve) == [0]


def test_where_twice_the_tokens_take_twice_the_time_nothing_pays() -> None:
    assert counts_of([[0.95, 0.9, 0.8]] * 4, PROPORTIONAL) == [0, 0, 0, 0]


def test_load_closes_and_long_context_opens() -> None:
    survival = [[0.7, 0.5, 0.3]] * 64
    assert sum(counts_of(survival, PLATEAU)) == 0
    reading = CostCurve(PLATEAU.to_dict()["knots"], kv_token_ms=2e-3)
    long = StepShape(64, 64, 64 * 4000)
    assert sum(counts_of(survival, reading, shape=long)) > 100


def test_the_likely_rows_go_first() -> None:
    counts = counts_of([[0.2, 0.1], [0.95, 0.9], [0.6, 0.2]], PLATEAU, num_rows=5)
    assert counts[1] == 2
    assert counts[1] >= counts[2] >= counts[0]


def test_a_draft_on_a_long_row_must_pay_for_its_attention() -> None:
    curve = CostCurve(PLATEAU.to_dict()["knots"], pair_ms=1e-3)
    shape = StepShape(2, 2, 8200)
    counts = counts_of([[0.3], [0.3]], curve, shape=shape, context_tokens=np.array([200.0, 8000.0]))
    assert counts == [1, 0]


def test_a_prompt_in_the_step_does_not_make_drafts_look_cheap() -> None:
    survival = [[0.3, 0.1]] * 64
    alone = counts_of(survival, PLATEAU)
    beside_a_prompt = counts_of(survival, PLATEAU, shape=StepShape(64 + 512, 65, 7000))
    assert beside_a_prompt == alone == [0] * 64


def test_time_that_passes_anyway_makes_drafts_worth_more() -> None:
    survival = [[0.5, 0.25]] * 16
    assert sum(counts_of(survival, PLATEAU, fixed_ms=30.0)) > sum(counts_of(survival, PLATEAU))


def test_a_gain_that_the_host_takes_back_is_none() -> None:
    """One draft of 64 rows that nearly pays for itself is left; twenty of them are taken."""
    curve = CostCurve([(1, 10.0), (64, 50.0), (256, 194.0)])  # 0.75 ms a draft, 0.78 ms a token
    assert sum(counts_of([[0.99]], curve, num_rows=64, shape=StepShape(64, 64, 0))) == 0
    assert sum(counts_of([[0.99]] * 64, curve, shape=StepShape(64, 64, 0))) == 64


def test_no_drafts_is_a_valid_input() -> None:
    admission = admit(np.zeros((2, 4)), PLATEAU, StepShape(2, 2, 10), num_committing=2)
    assert admission.best == 0
    assert admission.tokens_per_ms == pytest.approx(2 / PLATEAU.forward_ms(StepShape(2, 2, 10)))


@given(st.lists(st.lists(st.floats(0.02, 0.99), min_size=0, max_size=3), min_size=1, max_size=3), st.integers(0, 3))
def test_no_other_choice_is_better(chances: list[list[float]], which: int) -> None:
    """Against every choice of counts, one by one."""
    curve = [PLATEAU, PROPORTIONAL, CostCurve([(1, 5.0), (3, 5.0), (4, 9.0), (9, 9.1)]), CostCurve([(1, 1), (9, 2)])][
        which
    ]
    survival = np.zeros((len(chances), 3))
    for row, values in enumerate(chances):
        survival[row, : len(values)] = np.cumprod(values)
    num_rows = len(chances)

    def rate(counts: tuple[int, ...]) -> float:
        tokens = num_rows + sum(survival[row, :count].sum() for row, count in enumerate(counts))
        return float(tokens / curve.forward_ms(StepShape(num_rows + sum(counts), num_rows, 0)))

    chosen = tuple(counts_of(survival.tolist(), curve, shape=StepShape(num_rows, num_rows, 0)))
    best = max(rate(counts) for counts in itertools.product(*(range(len(values) + 1) for values in chances)))
    assert rate(chosen) >= (1.0 - LEAST_GAIN) * best
    assert rate(chosen) == pytest.approx(best) or not any(chosen)
