"""The curve as a linear model says what the curve says."""

from __future__ import annotations

import numpy as np
import pytest

from threefold.cost import CostCurve, StepShape
from threefold.cost_linear import SPREAD_MEASURED, features_of, start_covariance

KNOTS = [(2, 10.0), (8, 10.5), (64, 20.0), (256, 60.0)]
CURVE = CostCurve(KNOTS, row_ms=0.01, kv_token_ms=1e-3, pair_ms=1e-4)


@pytest.mark.parametrize("shape", [(1, 1, 0), (2, 2, 100), (40, 8, 5000), (64, 64, 9000), (1000, 4, 4000)])
def test_features_times_parameters_are_the_steps_time(shape: tuple[int, int, int]) -> None:
    step = StepShape(*shape)
    parameters = np.array([*CURVE.knots[1], 0.01, 1e-3, 1e-4])
    assert features_of(step, CURVE.knots[0].tolist()) @ parameters == pytest.approx(CURVE.forward_ms(step))


def test_a_fresh_curve_is_unsure_of_everything_and_more_of_what_lies_apart() -> None:
    ms = np.array([ms for _, ms in KNOTS])
    covariance = start_covariance(ms, np.zeros(3), SPREAD_MEASURED)
    assert np.all(np.linalg.eigvalsh(covariance) > 0)
    relative = covariance[:4, :4] / np.outer(ms, ms)
    assert np.sqrt(relative[0, 0]) == pytest.approx(np.hypot(*SPREAD_MEASURED))
    assert relative[0, 0] > relative[0, 1] > relative[0, 3] > 0
