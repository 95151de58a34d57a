"""The time of a step as compiled code reads it from the cost curve, with any number of tokens more.

Knows nothing about why there would be more. Compiled by numba, as acceptance.py is and for the same reason.
"""
# numba brings no types, so its decorator hides those of the function below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@numba.njit(cache=True, nogil=True)
def forward_ms(tokens: FloatArray, ms: FloatArray, num_tokens: float, fixed_ms: float, token_ms: float) -> float:
    """A forward pass of so many tokens; beyond its last knot the curve goes on as steeply.

    Args:
        tokens: [num_knots], the curve's.
        ms: [num_knots].
        num_tokens: of the step.
        fixed_ms: what the step takes beside the knots, whatever its tokens.
        token_ms: what it takes beside the knots for each token.
    """
    high = min(max(int(np.searchsorted(tokens, num_tokens)), 1), len(tokens) - 1)
    slope = (ms[high] - ms[high - 1]) / (tokens[high] - tokens[high - 1])
    return ms[high - 1] + slope * max(num_tokens - tokens[high - 1], 0.0) + token_ms * num_tokens + fixed_ms
