"""Milliseconds that asking for drafts takes, refined by every reading that says something new.

Knows nothing about steps, only the time of the smallest, by which it knows what may be expected.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from threefold.cost_fit import NOISE
from threefold.kalman import Estimate

FloatArray = npt.NDArray[np.float64]

LEAST_NOISE_MS = 1e-4
"""No time is known better."""


class DraftCost:
    """What drafters take behind a step.

        start_ms + round_ms · (rounds - 1) + row_ms · rows + token_ms · num_drafted

    Rounds are a draft model's forward passes.

    Args:
        figures: start_ms, round_ms, row_ms and token_ms.
        step_ms: time of the smallest step.
    """

    def __init__(self, figures: Sequence[float], step_ms: float) -> None:
        self._estimate = _estimate(figures, step_ms)
        self.figures: tuple[float, float, float, float]
        self._tidy()

    @property
    def is_known(self) -> bool:
        """False while asking seems to cost nothing."""
        return any(self.figures)

    def ms(self, num_rows: int, num_drafted: int, rounds: int) -> float:
        """Asking num_rows rows for num_drafted tokens in all, the longest draft being `rounds` tokens.

        With 0 rounds, what they add to an asking that happens anyway.
        """
        start_ms, round_ms, row_ms, token_ms = self.figures
        once_ms = start_ms + round_ms * (rounds - 1) if rounds > 0 else 0.0
        return once_ms + row_ms * num_rows + token_ms * num_drafted

    def observe(self, num_rows: int, num_drafted: int, rounds: int, ms: float) -> None:
        """Learn from an asking, unless it took what was expected."""
        expected_ms = self.ms(num_rows, num_drafted, rounds)
        if abs(ms - expected_ms) <= NOISE * expected_ms:
            return
        noise = max(2 * NOISE * max(ms, expected_ms), LEAST_NOISE_MS)
        self._estimate.observe(np.array([1.0, rounds - 1, num_rows, num_drafted]), float(ms), noise)
        self._tidy()

    def set_figures(self, figures: Sequence[float], step_ms: float) -> None:
        """Begin anew with these."""
        self._estimate = _estimate(figures, step_ms)
        self._tidy()

    def _tidy(self) -> None:
        """Nothing costs less than nothing."""
        values = self._estimate.values
        start_ms, round_ms, row_ms, token_ms = values.tolist()
        if min(start_ms, round_ms, row_ms, token_ms) < 0.0:
            np.maximum(values, 0.0, out=values)
            start_ms, round_ms, row_ms, token_ms = values.tolist()
        self.figures = start_ms, round_ms, row_ms, token_ms


def _estimate(figures: Sequence[float], step_ms: float) -> Estimate:
    """To begin may cost as much as a small step, a round less, a row or a token no more than its products."""
    values = np.array(figures, dtype=np.float64)
    unknown = step_ms * np.array([0.15, 0.1, 2e-3, 2e-3])
    return Estimate(values, np.diag((0.5 * values + unknown) ** 2))
