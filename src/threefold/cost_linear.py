"""The cost curve as a linear model: what its parameters are multiplied with, and how unsure they are to begin with.

Knows nothing about readings. A parameter for each knot of a piecewise linear curve, and three beside them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

SPREAD_MEASURED = (0.3, 0.2)
"""How unsure a measured curve is: the machine as a whole by 30 %, each stretch of the curve by another 20 %."""
SPREAD_GUESSED = (0.3, 1.0)
"""The same for a guess whose scale one reading has set."""


def features_of(shape: tuple[int, int, int, int], tokens: Sequence[float]) -> FloatArray:
    """What forward_ms multiplies the knots and the three coefficients with: [num_knots + 3]."""
    num_tokens, num_rows, kv_tokens, _ = shape
    num_knots = len(tokens)
    high = bisect_left(tokens, num_tokens, 1, num_knots - 1)
    share = max((num_tokens - tokens[high - 1]) / (tokens[high] - tokens[high - 1]), 0.0)
    features = np.zeros(num_knots + 3)
    features[high - 1], features[high] = 1.0 - share, share
    features[num_knots] = num_rows
    features[num_knots + 1] = kv_tokens
    features[num_knots + 2] = num_tokens * kv_tokens / max(num_rows, 1)
    return features


def start_covariance(ms: FloatArray, coefficients: FloatArray, spread: tuple[float, float]) -> FloatArray:
    """How unsure a fresh curve is: spread of the machine as a whole and of each stretch of the curve, relative."""
    index = np.arange(len(ms))
    near = np.exp(-np.abs(index[:, None] - index) / 1.5)
    covariance = np.zeros((len(ms) + 3, len(ms) + 3))
    covariance[: len(ms), : len(ms)] = np.outer(ms, ms) * (spread[0] ** 2 + spread[1] ** 2 * near)
    unknown = ms[0] * np.array([1e-2, 5e-5, 5e-5])
    covariance[range(-3, 0), range(-3, 0)] = (0.5 * coefficients + unknown) ** 2
    return covariance
