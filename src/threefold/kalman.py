"""A linear model's parameters, learned reading by reading.

Knows nothing about what they mean. Compiled by numba: a reading comes with every step, steps may take less than a
millisecond, and numpy's calls for so few numbers would take longer than all else that is done for one.
"""
# numba brings no types, so its decorator hides those of the function below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

OUTLIER = 3.0
"""A reading moves the parameters as if it were at most this many standard deviations off."""
SURPRISES = 4
"""So many readings in a row that are outliers to the same side are no outliers: what was known is wrong."""
FORGETTING = 1 / 512
"""Share of what is known that fades with every reading, so that learning never stops."""


class Estimate:
    """Parameters with their covariance: a Kalman filter that forgets towards where it began.

    covariance stays between 0 and its start value, so no reading ever counts for nothing or for everything.

    Args:
        values: [num_parameters], what is believed; the owner may correct it in place.
        covariance: [num_parameters, num_parameters], how unsure that is.
    """

    def __init__(self, values: FloatArray, covariance: FloatArray) -> None:
        self.values = values
        self._start = covariance
        self._covariance = covariance.copy()
        self._num_surprises = 0  # in a row, negative for readings below
        self.observe(np.zeros(len(values)), 0.0, 1.0, 0)  # teaches nothing, but has the body compiled or loaded

    def observe(self, features: FloatArray, reading: float, noise: float, num_readings: int = 1) -> None:
        """Move the parameters towards features · values = reading.

        Args:
            features: [num_parameters].
            reading: the mean of num_readings that are alike.
            noise: standard deviation of a single one.
            num_readings: how many; what is learned is the same as from each in turn.
        """
        off = _update(self.values, self._covariance, self._start, features, reading, noise, num_readings)
        if abs(off) > 1.0:
            self._count_surprises(off, num_readings)
        else:
            self._num_surprises = 0

    def _count_surprises(self, off: float, num_readings: int) -> None:
        """Begin to learn anew when readings stay further from what is expected than outliers should."""
        more = num_readings if off > 0 else -num_readings
        self._num_surprises = self._num_surprises + more if self._num_surprises * more >= 0 else more
        if abs(self._num_surprises) >= SURPRISES:
            self._covariance = self._start * off**2
            self._num_surprises = 0


@numba.njit(cache=True, nogil=True)
def _update(
    values: FloatArray,
    covariance: FloatArray,
    start: FloatArray,
    features: FloatArray,
    reading: float,
    noise: float,
    num_readings: int,
) -> float:
    """Take in readings, in place. Returns how far off they were, 1 = just no outlier."""
    size = len(values)
    direction = np.zeros(size)
    expected = spread = 0.0
    for j in range(size):
        if features[j] != 0.0:
            expected += features[j] * values[j]
            for i in range(size):
                direction[i] += features[j] * covariance[j, i]
    for j in range(size):
        spread += features[j] * direction[j]
    limit = OUTLIER * math.sqrt(spread + noise * noise)
    off = (reading - expected) / limit
    if num_readings:
        variance = spread + noise * noise / num_readings
        error = min(max(off, -1.0), 1.0) * limit / variance
        keep = (1.0 - FORGETTING) ** num_readings
        for i in range(size):
            values[i] += direction[i] * error
            share = direction[i] / variance
            for j in range(size):
                known = covariance[i, j] - share * direction[j]
                covariance[i, j] = keep * known + (1.0 - keep) * start[i, j]
    return off
