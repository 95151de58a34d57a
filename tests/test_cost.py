import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.cost import CostCurve, StepShape
from threefold.errors import ConfigError

CPU_MS = [(1, 13.7), (4, 12.3), (6, 12.7), (8, 13.2), (16, 18.6), (32, 29.7), (64, 50), (96, 72), (128, 91), (256, 175)]
TRUTH = CostCurve([(1, 13.0), (8, 13.2), (32, 29.7), (64, 50.0), (256, 175.0)], kv_token_ms=2e-3, pair_ms=5e-4)


def decode(num_rows: int, context: int = 0, num_new: int = 1) -> StepShape:
    return StepShape(num_rows * num_new, num_rows, num_rows * context)


def test_a_fit_goes_through_clean_readings_and_never_falls() -> None:
    curve = CostCurve.from_measurements([(StepShape(n, 1, 0), ms) for n, ms in CPU_MS])
    for n, ms in CPU_MS[3:]:
        assert curve.forward_ms(StepShape(n, 1, 0)) == pytest.approx(ms, rel=0.03)
    swept = [curve.forward_ms(StepShape(n, 1, 0)) for n in range(1, 600)]
    assert all(b >= a for a, b in itertools.pairwise(swept))
    assert swept[511] > swept[255] * 1.7  # beyond the last reading it goes on as steeply


def test_a_fit_tells_context_from_tokens_and_survives_an_outlier() -> None:
    rng = np.random.default_rng(1)
    shapes = [decode(1, 64, n) for n in (1, 2, 4, 6, 8)]
    shapes += [decode(n, context) for n in (4, 16, 64) for context in (64, 1024)]
    shapes += [decode(n, 64, 4) for n in (4, 16)] + [decode(1, 1024, 8), decode(1, 1024), decode(16, 1024, 4)]
    readings = [(shape, TRUTH.forward_ms(shape) * rng.normal(1.0, 0.02)) for shape in shapes]
    readings.append((decode(16, 64), 3 * TRUTH.forward_ms(decode(16, 64))))
    curve = CostCurve.from_measurements(readings)
    for shape in shapes:
        assert curve.forward_ms(shape) == pytest.approx(TRUTH.forward_ms(shape), rel=0.12)


@pytest.mark.parametrize("seed", range(40))
def test_a_fit_to_readings_of_a_busy_machine_leaves_no_stretch_without_a_cost(seed: int) -> None:
    """A quarter of them up to four times too long: the curve is off by then, but no step is for nothing."""
    rng = np.random.default_rng(seed)
    shapes = [decode(1, 64, n) for n in (1, 2, 4, 6, 8)] + [decode(n, 64, 4) for n in (4, 16, 64)]
    shapes += [decode(n, context) for n in (4, 16, 64) for context in (64, 1024)]
    shapes += [decode(1, 1024, 8), decode(1, 1024), decode(16, 1024, 4), *(StepShape(n, 1, n) for n in (32, 128, 512))]
    slow = np.where(rng.random(len(shapes)) < 0.25, 1 + 3 * rng.random(len(shapes)), 1.0)
    curve = CostCurve.from_measurements(
        [(shape, TRUTH.forward_ms(shape) * factor) for shape, factor in zip(shapes, slow, strict=True)]
    )
    assert curve.forward_ms(decode(1, 64)) > 0.5 * TRUTH.forward_ms(decode(1, 64))
    assert curve.knots[1][0] > 0.3 * TRUTH.knots[1][0]


def test_one_reading_is_enough_for_a_fit_and_none_is_not() -> None:
    curve = CostCurve.from_measurements([(decode(4, 64), 10.0)])
    assert curve.forward_ms(decode(4, 64)) == pytest.approx(10.0, rel=0.05)
    with pytest.raises(ConfigError, match="at least one reading"):
        CostCurve.from_measurements([(decode(4, 64), math.nan), (StepShape(0, 0, 0), 1.0)])


def test_readings_move_the_curve_and_outliers_hardly() -> None:
    curve = CostCurve([(1, 10.0), (64, 20.0), (256, 60.0)])
    rng = np.random.default_rng(2)
    for _ in range(600):
        shape = decode(int(rng.choice([1, 16, 64, 128])), 300)
        ms = TRUTH.forward_ms(shape) * rng.normal(1.0, 0.04)
        curve.observe(shape, ms * (10 if rng.random() < 0.02 else 1))
    for n in (1, 16, 64, 128):
        assert curve.forward_ms(decode(n, 300)) == pytest.approx(TRUTH.forward_ms(decode(n, 300)), rel=0.15)


def test_a_slower_machine_is_followed_everywhere() -> None:
    """What is learned at one load is mostly true of the others."""
    curve = CostCurve([(1, 13.0), (64, 50.0), (256, 175.0)])
    for _ in range(60):
        curve.observe(decode(64), 65.0)
    assert curve.forward_ms(decode(64)) == pytest.approx(65.0, rel=0.03)
    assert curve.forward_ms(decode(256)) > 190.0


def test_a_guess_is_cautious_and_its_first_reading_sets_the_scale() -> None:
    curve = CostCurve.uninformed()
    assert not curve.is_measured
    curve.observe(decode(64), 50.0)
    assert curve.is_measured
    assert curve.forward_ms(decode(64)) == pytest.approx(50.0)
    assert curve.forward_ms(decode(64, 0, 2)) > 85.0  # no plateau is taken for granted


def test_senseless_readings_teach_nothing() -> None:
    curve = CostCurve([(1, 10.0), (64, 20.0)])
    before = curve.to_dict()
    for ms in (0.0, -1.0, math.nan, math.inf):
        curve.observe(decode(4), ms)
    curve.observe(StepShape(0, 0, 0), 5.0)
    curve.observe_draft(0, 0, 0, 5.0)
    curve.observe_draft(1, 1, 1, math.nan)
    assert curve.to_dict() == before


def test_drafting_is_learned_by_rounds() -> None:
    """A draft model at four rows says what it costs at sixteen: rounds, not tokens."""
    curve = CostCurve([(1, 10.0), (64, 20.0)])
    for _ in range(40):
        curve.observe_draft(4, 16, 4, 4 * 2.0)
        curve.observe_draft(4, 8, 2, 2 * 2.0)
    assert curve.draft_ms(16, 16 * 4, 4) == pytest.approx(8.0, rel=0.3)
    assert curve.ms(decode(4)._replace(num_drafted=16)) == pytest.approx(curve.forward_ms(decode(4)) + 8.0, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(1, 3000), st.integers(1, 300), st.integers(0, 10**6), st.floats(1e-3, 1e5)), max_size=60
    )
)
def test_no_reading_breaks_the_curve(readings: list[tuple[int, int, int, float]]) -> None:
    curve = CostCurve.uninformed()
    for num_tokens, num_rows, kv_tokens, ms in readings:
        curve.observe(StepShape(num_tokens, num_rows, kv_tokens), ms)
        curve.observe_draft(num_rows, num_tokens, 4, ms)
    swept = [curve.forward_ms(StepShape(num_tokens, 4, 400)) for num_tokens in range(1, 10000, 37)]
    assert np.all(np.isfinite(swept)) and np.all(np.array(swept) > 0) and np.all(np.diff(swept) >= 0)


def test_the_disk_keeps_the_curve() -> None:
    curve = CostCurve.from_measurements([(decode(n, 64), ms) for n, ms in CPU_MS])
    curve.observe_draft(4, 16, 4, 8.0)
    stored = json.loads(json.dumps(curve.to_dict()))
    assert CostCurve.from_dict(stored).to_dict() == curve.to_dict()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"knots": "none"},
        {"knots": [[1, 1.0]]},
        {"knots": [[2, 1.0], [1, 2.0]]},
        {"knots": [[1, 1.0], [2, math.nan]]},
        {"knots": [[1, 1.0], [2, 2.0]], "row_ms": -1.0},
        {"knots": [[1, 1.0], [2, 2.0]], "colour": "red"},
    ],
)
def test_a_damaged_file_is_one_clear_error(data: dict) -> None:
    with pytest.raises(ConfigError, match="cost curve"):
        CostCurve.from_dict(data)


def test_a_draft_models_first_reading_tells_how_its_cost_grows() -> None:
    """Its passes grow with their rows as the model's steps do with their tokens."""
    flat, steep = (CostCurve([(1, 10.0), (16, ms)]) for ms in (10.0, 40.0))
    for curve in (flat, steep):
        curve.observe_draft(1, 8, 8, 16.0)
        assert curve.draft_ms(1, 8, 8) == pytest.approx(16.0)
    assert flat.draft_ms(16, 128, 8) == pytest.approx(16.0)
    assert steep.draft_ms(16, 128, 8) == pytest.approx(4 * 16.0)


def test_a_guess_at_looking_up_gives_way_to_what_is_known() -> None:
    curve = CostCurve([(1, 10.0), (64, 20.0)])
    curve.guess_draft(0.1, 0.01)
    assert curve.draft_ms(10, 0, 1) == pytest.approx(0.2)
    curve.guess_draft(5.0, 5.0)
    assert curve.draft_ms(10, 0, 1) == pytest.approx(0.2)
