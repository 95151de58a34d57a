"""What was compared, token by token, to figures with intervals.

A piece of text is one draw: tokens of one text are no independent ones, so intervals come from drawing pieces anew
(the bootstrap, Efron 1979), A and B always together. Plain arrays; knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_RESAMPLES = 1000
LEAST_PIECES = 8
"""Fewer give no interval that could be believed."""
_SPAN = (2.5, 97.5)


class Figure(NamedTuple):
    """A figure, and where 95 of 100 repetitions with other texts of the same kind would lie; None = cannot be said."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What the comparison came to."""

    num_tokens: int
    """Judged."""
    num_pieces: int
    perplexity_a: Figure
    perplexity_b: Figure
    perplexity_change: Figure
    """B over A, less one."""
    divergence: Figure
    """Mean KL(A || B), nats a token."""
    divergence_p99: float
    """Of 100 tokens one has more."""
    disagreement: Figure
    """Share of tokens at which B's most likely token is not A's."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a figure as {value, low, high}."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part._asdict() if isinstance(part, Figure) else part for name, part in parts.items()}


class Readings:
    """Figures as they come, piece by piece."""

    def __init__(self) -> None:
        self._sums: list[Floats] = []
        self._divergences: list[npt.NDArray[np.float32]] = []
        self.num_tokens = 0

    def add(self, figures: npt.NDArray[np.float32]) -> None:
        """Take a piece's figures: [4, n] surprise of A, of B, divergence, agreement."""
        num = figures.shape[1]
        self._sums.append(np.array([num, *figures.sum(axis=1, dtype=np.float64)]))
        self._divergences.append(figures[2])
        self.num_tokens += num

    @property
    def means(self) -> Floats:
        """Mean surprise of A and of B, divergence, agreement, so far."""
        total = np.sum(self._sums, axis=0)
        means: Floats = total[1:] / total[0]
        return means

    def summary(self, seed: int = 0) -> Summary:
        """All of it; there must be at least one piece."""
        draws = _resampled(np.stack(self._sums), seed)
        divergences = np.concatenate(self._divergences)

        def figure(of: Callable[[Floats], Floats]) -> Figure:
            spread = None if draws is None else np.percentile(of(draws), _SPAN)
            low, high = (None, None) if spread is None else (float(spread[0]), float(spread[1]))
            return Figure(float(of(self.means)), low, high)

        return Summary(
            num_tokens=self.num_tokens,
            num_pieces=len(self._sums),
            perplexity_a=figure(lambda means: np.exp(means[..., 0])),
            perplexity_b=figure(lambda means: np.exp(means[..., 1])),
            perplexity_change=figure(lambda means: np.expm1(means[..., 1] - means[..., 0])),
            divergence=figure(lambda means: means[..., 2]),
            divergence_p99=float(np.percentile(divergences, 99)),
            disagreement=figure(lambda means: 1.0 - means[..., 3]),
        )


def _resampled(sums: Floats, seed: int) -> Floats | None:
    """Means of as many pieces drawn with replacement, [resamples, 4]; a piece counts by its tokens."""
    num = len(sums)
    if num < LEAST_PIECES:
        return None
    generator = np.random.default_rng(seed)
    chances = np.full(num, 1 / num)
    totals = np.stack([generator.multinomial(num, chances) @ sums for _ in range(NUM_RESAMPLES)])
    means: Floats = totals[:, 1:] / totals[:, :1]
    return means
