"""Compiled code reads the curve as the curve reads itself."""

from __future__ import annotations

import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.curve import forward_ms

CURVE = CostCurve([(2, 10.0), (8, 10.5), (64, 20.0), (256, 60.0)], row_ms=0.01, kv_token_ms=1e-3, pair_ms=1e-4)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 8, 40, 64, 256, 1000])
def test_it_says_what_the_curve_says(num_tokens: int) -> None:
    shape = StepShape(num_tokens, 16, 3000)
    assert forward_ms(*CURVE.knots, float(num_tokens), *CURVE.beside_knots(shape)) == pytest.approx(
        CURVE.forward_ms(shape)
    )
