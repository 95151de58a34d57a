"""The cost curve that explains a set of readings: relative least squares, outliers damped, nothing negative.

Knows nothing about steps: a parameter for each knot of a piecewise linear curve, and three beside them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from threefold.kalman import OUTLIER
from threefold.least_squares import non_negative

FloatArray = npt.NDArray[np.float64]

GRID_TOKENS = tuple(2**i for i in range(14))
"""Where the curve may bend when nothing was measured: 1, 2, 4 … 8192 tokens."""
MAX_KNOTS = 32
NOISE = 0.05
"""Relative scatter of a step's time around its mean."""


def knot_tokens(measured: Iterable[int]) -> FloatArray:
    """Every measured token count and the grid up to the next one beyond; the grid alone when that is too many."""
    counts = set(measured)
    grid = {n for n in GRID_TOKENS if n <= 2 * max(counts)} | {1, 2}
    chosen = counts | grid
    return np.array(sorted(chosen if len(chosen) <= MAX_KNOTS else grid), dtype=np.float64)


def monotone(values: FloatArray) -> FloatArray:
    """A curve that never falls, between the lowest above and the highest below `values`."""
    upper: FloatArray = np.maximum.accumulate(values)
    lower: FloatArray = np.minimum.accumulate(values[::-1])[::-1]
    return 0.5 * (upper + lower)


def fit(features: FloatArray, ms: FloatArray, tokens: FloatArray) -> FloatArray:
    """Parameters that explain ms; where readings are silent the curve stays straight between them.

    Args:
        features: [num_readings, num_knots + 3], what the parameters are multiplied with.
        ms: [num_readings].
        tokens: [num_knots], where the knots are.

    Returns:
        [num_knots + 3], none negative, the knots never falling.
    """
    num_knots = len(tokens)
    bend = np.zeros((max(num_knots - 2, 0), num_knots + 3))
    for i in range(num_knots - 2):
        left, right = tokens[i + 1] - tokens[i], tokens[i + 2] - tokens[i + 1]
        bend[i, i : i + 3] = np.array([right, -(left + right), left]) / (left + right)
    lean = np.diag(np.concatenate([np.zeros(num_knots), [1e-2, 1.0, 1.0]]))[-3:]
    start = ms.min()
    prior = np.concatenate([1e-3 * bend / start, 1e-2 * lean / start])
    # In steps from knot to knot none of which is negative, the curve cannot fall; knots put right afterwards would no
    # longer explain the readings: with a few that a busy machine made slow, whole stretches came out as zero.
    steps = np.eye(num_knots + 3)
    steps[:num_knots, :num_knots] = np.tri(num_knots)
    weight = 1.0 / ms
    solution = np.zeros(num_knots + 3)
    for _ in range(4):
        rows = np.concatenate([features * weight[:, None], prior])
        goal = np.concatenate([ms * weight, np.zeros(len(prior))])
        solution = steps @ non_negative(rows @ steps, goal)
        off = np.abs(features @ solution - ms) / ms
        weight = np.minimum(1.0, OUTLIER * NOISE / np.maximum(off, 1e-9)) / ms
    return solution
