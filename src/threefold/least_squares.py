"""Least squares with nothing negative, for problems of a few dozen unknowns.

Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23: unknowns are let go of zero one by one, the one
first that would lower the sum of squares fastest, and put back when the solution would push them below.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_TOLERANCE = 1e-10


def non_negative(matrix: FloatArray, goal: FloatArray) -> FloatArray:
    """The x >= 0 that minimises |matrix · x - goal|.

    Args:
        matrix: [num_equations, num_unknowns], none of its columns a combination of others.
        goal: [num_equations].
    """
    num_unknowns = matrix.shape[1]
    solution = np.zeros(num_unknowns)
    is_free = np.zeros(num_unknowns, dtype=bool)
    least = _TOLERANCE * float(np.abs(matrix.T @ goal).max())
    for _ in range(3 * num_unknowns):  # as a rule each is let go once
        slope = np.where(is_free, -np.inf, matrix.T @ (goal - matrix @ solution))
        first = int(np.argmax(slope))
        if slope[first] <= least:
            break
        is_free[first] = True
        solution = _with_free(matrix, goal, solution, is_free)
    return solution


def _with_free(
    matrix: FloatArray, goal: FloatArray, solution: FloatArray, is_free: npt.NDArray[np.bool_]
) -> FloatArray:
    """The best with these unknowns alone; those that it would push below zero are held there (is_free is changed)."""
    while True:
        best = np.zeros_like(solution)
        best[is_free] = np.linalg.lstsq(matrix[:, is_free], goal, rcond=None)[0]
        is_low = is_free & (best <= 0.0)
        if not is_low.any():
            return best
        share = float(np.min(solution[is_low] / (solution[is_low] - best[is_low])))
        solution = solution + share * (best - solution)
        is_free &= solution > 1e-12 * float(solution.max(initial=0.0))
