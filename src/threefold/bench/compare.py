"""Is B faster than A? Statistics for runs taken in turn: A B A B … Pure arithmetic, no engine.

Machines drift: what is measured an hour later differs for reasons of its own. So A and B are run in turn and compared
round by round: the ratio within a round has the drift taken out. The interval says how far the ratio can be trusted;
when it covers 1, the honest word is "no difference".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

MIN_ROUNDS = 3
"""Fewer rounds give no interval."""
_CONFIDENCE = 0.95
_RESAMPLES = 4000

Run = TypeVar("Run")


@dataclass(frozen=True, slots=True)
class Spread:
    """One side's readings."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median, smallest and largest."""
        return cls(float(np.median(values)), float(min(values)), float(max(values)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the rounds say about B over A."""

    a: Spread
    b: Spread
    ratio: float
    """Geometric mean over rounds of B / A."""
    interval: tuple[float, float] | None
    """Where the ratio lies with 95 % confidence; None with fewer than MIN_ROUNDS rounds."""

    @property
    def is_different(self) -> bool:
        """True when the interval excludes 1."""
        return self.interval is not None and not self.interval[0] <= 1.0 <= self.interval[1]

    def verdict(self, a_name: str = "A", b_name: str = "B") -> str:
        """One sentence for figures of which more is better."""
        if self.interval is None:
            return f"{b_name} / {a_name} = {self.ratio:.3f}; too few rounds to say more"
        span = f"{self.ratio:.3f} ({self.interval[0]:.3f} to {self.interval[1]:.3f})"
        if not self.is_different:
            return f"no difference: {b_name} / {a_name} = {span}"
        word = "higher" if self.ratio > 1 else "lower"
        return f"{b_name} is {abs(self.ratio - 1):.1%} {word} than {a_name}: {b_name} / {a_name} = {span}"


def compare(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Comparison:
    """Compare positive readings taken in turn: a[i] and b[i] belong to one round.

    The interval is a percentile bootstrap over rounds of the mean log ratio; deviations are widened by
    sqrt(n / (n - 1)), since resampling n rounds understates the spread of their mean by that much.

    Raises:
        ValueError: no rounds, unequal numbers, or a reading that is not positive.
    """
    if not a or len(a) != len(b):
        raise ValueError(f"wants as many readings of A as of B, got {len(a)} and {len(b)}")
    if min(*a, *b) <= 0:
        raise ValueError("readings must be above 0")
    logs = np.log(np.asarray(b, dtype=float) / np.asarray(a, dtype=float))
    center = float(logs.mean())
    interval = _interval(logs, center, seed) if len(logs) >= MIN_ROUNDS else None
    return Comparison(Spread.of(a), Spread.of(b), float(np.exp(center)), interval)


def _interval(logs: np.ndarray, center: float, seed: int) -> tuple[float, float]:
    count = len(logs)
    picks = np.random.default_rng(seed).integers(0, count, size=(_RESAMPLES, count))
    means = center + (logs[picks].mean(axis=1) - center) * np.sqrt(count / (count - 1))
    tail = 100 * (1 - _CONFIDENCE) / 2
    low, high = np.percentile(means, (tail, 100 - tail))
    return float(np.exp(low)), float(np.exp(high))


def interleave(runs: Sequence[Callable[[], Run]], num_rounds: int) -> list[list[Run]]:
    """Run A, B, C … in turn, each round once; every second round goes backwards, so that a steady drift cancels out."""
    results: list[list[Run]] = [[] for _ in runs]
    for index in range(num_rounds):
        order = list(zip(runs, results, strict=True))
        for run, into in order if index % 2 == 0 else order[::-1]:
            into.append(run())
    return results
