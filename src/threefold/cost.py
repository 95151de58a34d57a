"""StepShape to milliseconds: the one cost curve that scheduler, controller, advisor and tuner share.

Knows nothing about models or devices, only about readings: calibration gives the first ones, every real step another,
so the curve follows the machine it runs on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from threefold.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

GRID_TOKENS = tuple(2**i for i in range(14))
"""Where the curve may bend when nothing was measured: 1, 2, 4 … 8192 tokens."""
MAX_KNOTS = 32
NOISE = 0.05
"""Relative scatter of a step's time around its mean."""
OUTLIER = 3.0
"""A reading moves the curve as if it were at most this many standard deviations off."""
FAR_TOKENS = 16
"""Up to so many tokens the curve tells how a draft model's passes may grow."""
LEAST_MS = 1e-6
"""No step takes less."""
SURPRISES = 4
"""So many readings in a row that are outliers to the same side are no outliers: what was known is wrong."""
FORGETTING = 1 / 512
"""Share of what is known that fades with every reading, so that the curve never stops learning."""
LEARN_ALL_READINGS = 256
"""After so many, learning from every reading would teach little more and cost time in each step."""
SPREAD_MEASURED = (0.3, 0.2)
"""How unsure a measured curve is: the machine as a whole by 30 %, each stretch of the curve by another 20 %."""
SPREAD_GUESSED = (0.3, 1.0)
"""The same for a guess whose scale one reading has set."""


class StepShape(NamedTuple):
    """What a step's time depends on."""

    num_tokens: int
    """Tokens fed, drafts included."""
    num_rows: int
    """Rows that run."""
    kv_tokens: int
    """KV tokens read: the sum over rows of the context that the row's queries look at."""
    num_drafted: int = 0
    """Tokens that drafters are asked to propose after the step."""


class _Estimate:
    """A linear model's parameters with their covariance: a Kalman filter that forgets towards where it began.

    covariance stays between 0 and its start value, so no reading ever counts for nothing or for everything.
    """

    def __init__(self, values: FloatArray, covariance: FloatArray) -> None:
        self.values = values
        self._start = covariance
        self._covariance = covariance.copy()
        self._num_surprises = 0  # in a row, negative for readings below

    def observe(self, features: FloatArray, reading: float, noise: float) -> None:
        """Move the parameters towards features · values = reading, which scatters by `noise` (standard deviation)."""
        direction = self._covariance @ features
        variance = float(features @ direction) + noise * noise
        limit = OUTLIER * math.sqrt(variance)
        surprise = reading - float(features @ self.values)
        error = min(max(surprise, -limit), limit)
        self.values = self.values + direction * (error / variance)
        self._covariance -= np.outer(direction, direction / variance)
        self._covariance += FORGETTING * (self._start - self._covariance)
        self._count_surprises(surprise / limit)

    def _count_surprises(self, surprise: float) -> None:
        """Begin to learn anew when readings stay far from what is expected."""
        if abs(surprise) <= 1.0:
            self._num_surprises = 0
            return
        side = 1 if surprise > 0 else -1
        self._num_surprises = self._num_surprises + side if self._num_surprises * side >= 0 else side
        if abs(self._num_surprises) >= SURPRISES:
            self._covariance = self._start * surprise**2
            self._num_surprises = 0


class CostCurve:
    """Milliseconds of a step, refined by every reading.

        forward = knots(num_tokens) + row_ms · rows + kv_token_ms · kv + pair_ms · num_tokens · (kv / rows)
        drafting = draft_start_ms + draft_round_ms · (rounds - 1) + draft_row_ms · rows + draft_token_ms · num_drafted

    knots is piecewise linear and never falls: it holds the products, flat while they are bound by memory. The last term
    of the first line is attention's arithmetic, one query against one key. Rounds are a draft model's forward passes.

    Args:
        knots: (tokens, ms), tokens increasing.
        row_ms: cost of a row whatever it feeds.
        kv_token_ms: cost of reading one KV token.
        pair_ms: cost of one query-key pair.
        draft_start_ms: cost of asking at all: the first round, and where steps overlap what the device waits for.
        draft_round_ms: cost of each further round, whatever the rows.
        draft_row_ms: cost of asking one more row for a draft.
        draft_token_ms: cost of asking for one more draft token.
        is_measured: False while the figures are a guess; the first reading then sets their scale.
    """

    def __init__(
        self,
        knots: Sequence[tuple[float, float]],
        *,
        row_ms: float = 0.0,
        kv_token_ms: float = 0.0,
        pair_ms: float = 0.0,
        draft_start_ms: float = 0.0,
        draft_round_ms: float = 0.0,
        draft_row_ms: float = 0.0,
        draft_token_ms: float = 0.0,
        is_measured: bool = True,
    ) -> None:
        tokens, ms = np.array(knots, dtype=np.float64).reshape(-1, 2).T
        drafting = (draft_start_ms, draft_round_ms, draft_row_ms, draft_token_ms)
        figures = np.array([row_ms, kv_token_ms, pair_ms, *drafting])
        if not 2 <= len(tokens) or np.any(np.diff(tokens) <= 0) or tokens[0] < 1:
            raise ConfigError(f"a cost curve needs two or more knots of increasing token counts, got {list(tokens)}")
        if not (np.all(np.isfinite(ms)) and np.all(ms > 0) and np.all(np.isfinite(figures)) and np.all(figures >= 0)):
            raise ConfigError("a cost curve's times must be finite and not negative")
        self.is_measured = is_measured
        self._num_readings = 0
        self._tokens = tokens
        self._knots: tuple[list[float], list[float]]
        self._row_ms: float
        self._kv_token_ms: float
        self._pair_ms: float
        self._draft_start_ms: float
        self._draft_round_ms: float
        self._draft_row_ms: float
        self._draft_token_ms: float
        self._forward = _Estimate(
            np.concatenate([ms, figures[:3]]), _start_covariance(ms, figures[:3], SPREAD_MEASURED)
        )
        self._draft = _Estimate(figures[3:], _start_draft_covariance(ms, figures[3:]))
        self._tidy()
        self._tidy_draft()

    @classmethod
    def uninformed(cls) -> CostCurve:
        """A guess that leads to caution: one token costs what the next sixteen do, and so on without a plateau.

        Drafts then pay for one request alone, where every device reads its weights for next to nothing, and under load
        only when they are nearly sure; the first steps mend it.
        """
        return cls([(n, 1.0 + n / 16) for n in GRID_TOKENS], is_measured=False)

    @classmethod
    def from_measurements(cls, readings: Sequence[tuple[StepShape, float]]) -> CostCurve:
        """Fit to (shape, forward ms) readings: relative least squares, outliers damped, nothing negative.

        Raises:
            ConfigError: no reading is usable.
        """
        readings = [(shape, ms) for shape, ms in readings if _is_usable(shape, ms)]
        if not readings:
            raise ConfigError("a cost curve needs at least one reading of a step with tokens and a positive time")
        tokens = _knot_tokens([shape.num_tokens for shape, _ in readings])
        features = np.stack([_features(shape, tokens) for shape, _ in readings])
        fitted = _fit(features, np.array([ms for _, ms in readings]), tokens)
        knots = list(zip(tokens.tolist(), np.maximum(_monotone(fitted[:-3]), LEAST_MS).tolist(), strict=True))
        row_ms, kv_token_ms, pair_ms = fitted[-3:].tolist()
        return cls(knots, row_ms=row_ms, kv_token_ms=kv_token_ms, pair_ms=pair_ms)

    @property
    def knots(self) -> tuple[FloatArray, FloatArray]:
        """Tokens and ms of a step without rows and context."""
        return self._tokens, self._forward.values[:-3]

    def beside_knots(self, shape: StepShape) -> tuple[float, float]:
        """What a step takes beside the knots: ms, and ms for each of its tokens."""
        fixed_ms = self._row_ms * shape.num_rows + self._kv_token_ms * shape.kv_tokens
        return fixed_ms, self._pair_ms * shape.kv_tokens / max(shape.num_rows, 1)

    @property
    def pair_ms(self) -> float:
        """Cost of one query-key pair, ms."""
        return self._pair_ms

    def ms(self, shape: StepShape) -> float:
        """Forward pass and drafting together; drafts are spread evenly over the rows."""
        rounds = -(-shape.num_drafted // max(shape.num_rows, 1))
        num_asked = min(shape.num_rows, shape.num_drafted)
        return self.forward_ms(shape) + self.draft_ms(num_asked, shape.num_drafted, rounds)

    def forward_ms(self, shape: StepShape) -> float:
        """The forward pass alone."""
        num_tokens, num_rows, kv_tokens, _ = shape
        tokens, ms = self._knots
        high = min(max(bisect_left(tokens, num_tokens), 1), len(tokens) - 1)
        low = high - 1
        slope = (ms[high] - ms[low]) / (tokens[high] - tokens[low])
        curve = ms[low] + slope * max(num_tokens - tokens[low], 0.0)
        pairs = num_tokens * kv_tokens / max(num_rows, 1)
        return curve + self._row_ms * num_rows + self._kv_token_ms * kv_tokens + self._pair_ms * pairs

    def forward_ms_many(self, num_tokens: FloatArray, shape: StepShape) -> FloatArray:
        """The forward pass of steps that differ from `shape` in their tokens alone; same shape as num_tokens."""
        tokens, ms = self._knots
        fixed, pair_slope = self.beside_knots(shape)
        last_slope = (ms[-1] - ms[-2]) / (tokens[-1] - tokens[-2])
        curve: FloatArray = np.interp(num_tokens, self._tokens, self._forward.values[:-3])
        curve += pair_slope * num_tokens + fixed
        curve += last_slope * np.maximum(num_tokens - tokens[-1], 0.0)
        return curve

    @overload
    def draft_ms(self, num_rows: int, num_drafted: int, rounds: int) -> float: ...
    @overload
    def draft_ms(self, num_rows: int, num_drafted: IntArray, rounds: IntArray) -> FloatArray: ...
    def draft_ms(self, num_rows: int, num_drafted: Any, rounds: Any) -> Any:
        """Asking num_rows rows for num_drafted tokens in all, the longest draft being `rounds` tokens.

        With 0 rounds, what they add to an asking that happens anyway.
        """
        per_ask_ms = self._draft_row_ms * num_rows + self._draft_token_ms * num_drafted
        has_begun = rounds > 0
        return per_ask_ms + self._draft_start_ms * has_begun + self._draft_round_ms * (rounds - has_begun)

    def observe(self, shape: StepShape, ms: float) -> None:
        """Learn from a real step's forward pass; of later readings that were as expected, from every fourth.

        Readings that make no sense are ignored.
        """
        if not _is_usable(shape, ms):
            return
        if not self.is_measured:
            self._set_scale(ms / self.forward_ms(shape))
        expected_ms = self.forward_ms(shape)
        self._num_readings += 1
        is_late = self._num_readings > LEARN_ALL_READINGS and self._num_readings % 4 > 0
        if is_late and abs(ms - expected_ms) <= 2 * NOISE * expected_ms:
            return
        self._forward.observe(_features(shape, self._tokens), ms, NOISE * expected_ms)
        self._tidy()

    def guess_draft(self, start_ms: float, row_ms: float) -> None:
        """Take this for the cost of drafts that are looked up, as long as nothing else is known."""
        if not self._draft.values.any():
            self._set_draft([start_ms, 0.0, row_ms, 0.0])

    def observe_draft(self, num_rows: int, num_drafted: int, rounds: int, ms: float) -> None:
        """Learn from the time that proposing took, unless it was as expected.

        The first reading of a draft model sets its scale: its passes grow with their tokens as this model's do.
        """
        if rounds < 1 or not (math.isfinite(ms) and ms >= 0):
            return
        if num_drafted and not self._draft.values.any():
            self._guess_rounds(num_drafted, rounds, ms)
        expected_ms = self.draft_ms(num_rows, num_drafted, rounds)
        if abs(ms - expected_ms) <= NOISE * expected_ms:
            return
        noise = max(2 * NOISE * max(ms, expected_ms), 1e-4)
        self._draft.observe(np.array([1.0, rounds - 1, num_rows, num_drafted]), ms, noise)
        self._tidy_draft()

    def to_dict(self) -> dict[str, Any]:
        """Plain figures for the disk; from_dict reads them back."""
        return {
            "knots": [[num_tokens, ms] for num_tokens, ms in zip(*self._knots, strict=True)],
            "row_ms": self._row_ms,
            "kv_token_ms": self._kv_token_ms,
            "pair_ms": self._pair_ms,
            "draft_start_ms": self._draft_start_ms,
            "draft_round_ms": self._draft_round_ms,
            "draft_row_ms": self._draft_row_ms,
            "draft_token_ms": self._draft_token_ms,
            "is_measured": self.is_measured,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostCurve:
        """The curve that to_dict wrote.

        Raises:
            ConfigError: the data is not such a curve.
        """
        try:
            return cls(data["knots"], **{key: value for key, value in data.items() if key != "knots"})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a stored cost curve: {error!r}") from error

    def _guess_rounds(self, num_drafted: int, rounds: int, ms: float) -> None:
        one, far = (self.forward_ms(StepShape(num_tokens, 1, 0)) for num_tokens in (1, FAR_TOKENS))
        share = (far - one) / (FAR_TOKENS - 1) / one  # of a pass of one token, for each further one
        pass_ms = ms / (rounds + share * (num_drafted - rounds))
        self._set_draft([(1.0 - share) * pass_ms, (1.0 - share) * pass_ms, 0.0, share * pass_ms])

    def _set_draft(self, figures: list[float]) -> None:
        values = np.array(figures)
        self._draft = _Estimate(values, _start_draft_covariance(self._forward.values[:-3], values))
        self._tidy_draft()

    def _set_scale(self, factor: float) -> None:
        ms = self._forward.values[:-3] * factor
        values = np.concatenate([ms, self._forward.values[-3:]])
        self._forward = _Estimate(values, _start_covariance(ms, values[-3:], SPREAD_GUESSED))
        self._draft = _Estimate(self._draft.values, _start_draft_covariance(ms, self._draft.values))
        self.is_measured = True
        self._tidy()

    def _tidy(self) -> None:
        """Keep what the filter says within what is possible: no falling curve, no negative cost."""
        values = self._forward.values
        knots = values[:-3]
        if np.any(knots[1:] < knots[:-1]):
            knots[:] = _monotone(knots)
        np.maximum(knots, LEAST_MS, out=knots)
        np.maximum(values[-3:], 0.0, out=values[-3:])
        self._knots = self._tokens.tolist(), knots.tolist()
        self._row_ms, self._kv_token_ms, self._pair_ms = values[-3:].tolist()

    def _tidy_draft(self) -> None:
        np.maximum(self._draft.values, 0.0, out=self._draft.values)
        self._draft_start_ms, self._draft_round_ms, self._draft_row_ms, self._draft_token_ms = (
            self._draft.values.tolist()
        )


def _is_usable(shape: StepShape, ms: float) -> bool:
    return shape.num_tokens >= 1 and math.isfinite(ms) and ms > 0


def _monotone(values: FloatArray) -> FloatArray:
    """A curve that never falls, between the lowest above and the highest below `values`."""
    upper: FloatArray = np.maximum.accumulate(values)
    lower: FloatArray = np.minimum.accumulate(values[::-1])[::-1]
    return 0.5 * (upper + lower)


def _features(shape: StepShape, tokens: FloatArray) -> FloatArray:
    """What forward_ms multiplies the knots and the three coefficients with: [num_knots + 3]."""
    features = np.zeros(len(tokens) + 3)
    high = min(max(int(np.searchsorted(tokens, shape.num_tokens)), 1), len(tokens) - 1)
    share = max((shape.num_tokens - tokens[high - 1]) / (tokens[high] - tokens[high - 1]), 0.0)
    features[high - 1], features[high] = 1.0 - share, share
    rows = max(shape.num_rows, 1)
    features[-3:] = shape.num_rows, shape.kv_tokens, shape.num_tokens * shape.kv_tokens / rows
    return features


def _start_covariance(ms: FloatArray, coefficients: FloatArray, spread: tuple[float, float]) -> FloatArray:
    """How unsure a fresh curve is: spread of the machine as a whole and of each stretch of the curve, relative."""
    index = np.arange(len(ms))
    near = np.exp(-np.abs(index[:, None] - index) / 1.5)
    covariance = np.zeros((len(ms) + 3, len(ms) + 3))
    covariance[: len(ms), : len(ms)] = np.outer(ms, ms) * (spread[0] ** 2 + spread[1] ** 2 * near)
    unknown = ms[0] * np.array([1e-2, 5e-5, 5e-5])
    covariance[range(-3, 0), range(-3, 0)] = (0.5 * coefficients + unknown) ** 2
    return covariance


def _start_draft_covariance(ms: FloatArray, coefficients: FloatArray) -> FloatArray:
    """To begin may cost as much as a small step, a round less, a row or a token no more than its products."""
    unknown = ms[0] * np.array([0.15, 0.1, 2e-3, 2e-3])
    covariance: FloatArray = np.diag((0.5 * coefficients + unknown) ** 2)
    return covariance


def _knot_tokens(measured: Iterable[int]) -> FloatArray:
    """Every measured token count and the grid up to the next one beyond; the grid alone when that is too many."""
    counts = set(measured)
    grid = {n for n in GRID_TOKENS if n <= 2 * max(counts)} | {1, 2}
    chosen = counts | grid
    return np.array(sorted(chosen if len(chosen) <= MAX_KNOTS else grid), dtype=np.float64)


def _fit(features: FloatArray, ms: FloatArray, tokens: FloatArray) -> FloatArray:
    """Parameters that explain ms, [num_knots + 3]; where readings are silent the curve stays straight between them."""
    num_knots = len(tokens)
    bend = np.zeros((max(num_knots - 2, 0), num_knots + 3))
    for i in range(num_knots - 2):
        left, right = tokens[i + 1] - tokens[i], tokens[i + 2] - tokens[i + 1]
        bend[i, i : i + 3] = np.array([right, -(left + right), left]) / (left + right)
    lean = np.diag(np.concatenate([np.zeros(num_knots), [1e-2, 1.0, 1.0]]))[-3:]
    start = ms.min()
    prior = np.concatenate([1e-3 * bend / start, 1e-2 * lean / start])
    weight = 1.0 / ms
    free = np.ones(num_knots + 3, dtype=bool)
    solution = np.zeros(num_knots + 3)
    for _ in range(4):
        rows = np.concatenate([features * weight[:, None], prior])[:, free]
        goal = np.concatenate([ms * weight, np.zeros(len(prior))])
        solution[free] = np.linalg.lstsq(rows, goal, rcond=None)[0]
        off = np.abs(features @ solution - ms) / ms
        weight = np.minimum(1.0, OUTLIER * NOISE / np.maximum(off, 1e-9)) / ms
        free[-3:] &= solution[-3:] > 0
        solution[~free] = 0.0
    return solution
