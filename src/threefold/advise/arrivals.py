"""When requests came: rate, and how far from evenly. Pure arithmetic over times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOWS_S = (1.0, 10.0, 60.0)
"""Windows in which arrivals are counted."""
LEAST_WINDOWS = 10
"""Fewer say nothing about dispersion."""


def describe_arrivals(arrivals_s: Sequence[float]) -> dict[str, Any] | None:
    """Rate and bursts of sorted arrivals; None when there are too few, or all at one moment.

    `gamma_shape` is the shape of a gamma distribution with the gaps' mean and variance, which is what load generators
    call burstiness: 1 is a Poisson stream, less is bursty, more is even. `dispersion` is variance over mean of the
    arrivals a window: 1 is Poisson too, and it sees bursts that last longer than a gap.
    """
    times = np.asarray(arrivals_s, dtype=np.float64)
    if len(times) < 3 or times[-1] <= times[0]:
        return None
    gaps = np.diff(times)
    duration_s = float(times[-1] - times[0])
    spread = float(gaps.std() / gaps.mean())
    peak = _counts(times, min(10.0, duration_s / 2))
    return {
        "duration_s": duration_s,
        "rate_rps": len(gaps) / duration_s,
        "gap_variation": spread,
        "gamma_shape": 1.0 / max(spread, 1e-3) ** 2,
        "dispersion": {f"{window:g}": _dispersion(times, window) for window in WINDOWS_S},
        "peak_rate_rps": float(peak.max() / min(10.0, duration_s / 2)),
    }


def _counts(times: npt.NDArray[np.float64], window_s: float) -> npt.NDArray[np.int64]:
    whole = max(int((times[-1] - times[0]) / window_s), 1)
    places = ((times - times[0]) / window_s).astype(np.int64)
    return np.bincount(places[places < whole], minlength=whole)


def _dispersion(times: npt.NDArray[np.float64], window_s: float) -> float | None:
    counts = _counts(times, window_s)
    if len(counts) < LEAST_WINDOWS or not counts.any():
        return None
    return float(counts.var() / counts.mean())
