"""StepShape to milliseconds: the one cost curve that scheduler, controller, advisor and tuner share.

Knows nothing about models or devices, only about readings: calibration gives the first ones, every real step another,
so the curve follows the machine it runs on.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from threefold.cost_draft import DraftCost
from threefold.cost_fit import GRID_TOKENS, NOISE, fit, knot_tokens, monotone
from threefold.cost_linear import SPREAD_GUESSED, SPREAD_MEASURED, features_of, start_covariance
from threefold.errors import ConfigError
from threefold.kalman import Estimate

FloatArray = npt.NDArray[np.float64]

FAR_TOKENS = 16
"""Up to so many tokens the curve tells how a draft model's passes may grow."""
LEAST_MS = 1e-6
"""No step takes less."""


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
        beside = np.array([row_ms, kv_token_ms, pair_ms])
        drafting = [draft_start_ms, draft_round_ms, draft_row_ms, draft_token_ms]
        figures = np.array([*beside, *drafting])
        if not 2 <= len(tokens) or np.any(np.diff(tokens) <= 0) or tokens[0] < 1:
            raise ConfigError(f"a cost curve needs two or more knots of increasing token counts, got {list(tokens)}")
        if not (np.all(np.isfinite(ms)) and np.all(ms > 0) and np.all(np.isfinite(figures)) and np.all(figures >= 0)):
            raise ConfigError("a cost curve's times must be finite and not negative")
        self.is_measured = is_measured
        self._tokens = tokens.copy()
        self._knot_tokens: list[float] = tokens.tolist()
        self._knot_ms: list[float]
        self._row_ms: float
        self._kv_token_ms: float
        self._pair_ms: float
        self._set_forward(ms, beside, SPREAD_MEASURED)
        self._drafting = DraftCost(drafting, float(ms[0]))

    @classmethod
    def uninformed(cls) -> CostCurve:
        """A guess that leads to caution: one token costs what the next sixteen do, and so on without a plateau.

        Drafts then pay for one request alone, where every device reads its weights for next to nothing, and under load
        only when they are nearly sure; the first steps mend it.
        """
        return cls([(n, 1.0 + n / 16) for n in GRID_TOKENS], is_measured=False)

    @classmethod
    def from_measurements(cls, readings: Sequence[tuple[StepShape, float]]) -> CostCurve:
        """Fit to (shape, forward ms) readings.

        Raises:
            ConfigError: no reading is usable.
        """
        readings = [(shape, ms) for shape, ms in readings if _is_usable(shape, ms)]
        if not readings:
            raise ConfigError("a cost curve needs at least one reading of a step with tokens and a positive time")
        tokens = knot_tokens([shape.num_tokens for shape, _ in readings])
        features = np.stack([features_of(shape, tokens.tolist()) for shape, _ in readings])
        fitted = fit(features, np.array([ms for _, ms in readings]), tokens)
        knots = list(zip(tokens.tolist(), np.maximum(fitted[:-3], LEAST_MS).tolist(), strict=True))
        row_ms, kv_token_ms, pair_ms = fitted[-3:].tolist()
        return cls(knots, row_ms=row_ms, kv_token_ms=kv_token_ms, pair_ms=pair_ms)

    @property
    def knots(self) -> tuple[FloatArray, FloatArray]:
        """Tokens and ms of a step without rows and context; they change with the curve."""
        return self._tokens, self._knot_view

    def beside_knots(self, shape: StepShape) -> tuple[float, float]:
        """What a step takes beside the knots: ms, and ms for each of its tokens."""
        fixed_ms = self._row_ms * shape.num_rows + self._kv_token_ms * shape.kv_tokens
        return fixed_ms, self._pair_ms * shape.kv_tokens / max(shape.num_rows, 1)

    @property
    def pair_ms(self) -> float:
        """Cost of one query-key pair, ms."""
        return self._pair_ms

    @property
    def draft_figures(self) -> tuple[float, float, float, float]:
        """draft_start_ms, draft_round_ms, draft_row_ms and draft_token_ms."""
        return self._drafting.figures

    def ms(self, shape: StepShape) -> float:
        """Forward pass and drafting together; drafts are spread evenly over the rows."""
        rounds = -(-shape.num_drafted // max(shape.num_rows, 1))
        num_asked = min(shape.num_rows, shape.num_drafted)
        return self.forward_ms(shape) + self.draft_ms(num_asked, shape.num_drafted, rounds)

    def forward_ms(self, shape: StepShape) -> float:
        """The forward pass alone."""
        num_tokens, num_rows, kv_tokens, _ = shape
        tokens, ms = self._knot_tokens, self._knot_ms
        high = bisect_left(tokens, num_tokens, 1, len(tokens) - 1)
        low = high - 1
        curve = ms[low]
        if num_tokens > tokens[low]:
            curve += (ms[high] - curve) / (tokens[high] - tokens[low]) * (num_tokens - tokens[low])
        pairs = num_tokens * kv_tokens / num_rows if num_rows else 0.0
        return curve + self._row_ms * num_rows + self._kv_token_ms * kv_tokens + self._pair_ms * pairs

    def draft_ms(self, num_rows: int, num_drafted: int, rounds: int) -> float:
        """Asking num_rows rows for num_drafted tokens in all, the longest draft being `rounds` tokens.

        With 0 rounds, what they add to an asking that happens anyway.
        """
        return self._drafting.ms(num_rows, num_drafted, rounds)

    def observe(self, shape: StepShape, ms: float, num_readings: int = 1) -> None:
        """Learn from a real step's forward pass, or from several of about one shape: their mean shape and time.

        Readings that make no sense are ignored.
        """
        if not _is_usable(shape, ms):
            return
        if not self.is_measured:
            self._set_scale(ms / self.forward_ms(shape))
        noise_ms = NOISE * self.forward_ms(shape)
        self._forward.observe(features_of(shape, self._knot_tokens), float(ms), noise_ms, num_readings)
        self._tidy()

    def guess_draft(self, start_ms: float, row_ms: float) -> None:
        """Take this for the cost of drafts that are looked up, as long as nothing else is known."""
        if not self._drafting.is_known:
            self._drafting.set_figures([start_ms, 0.0, row_ms, 0.0], self._knot_ms[0])

    def observe_draft(self, num_rows: int, num_drafted: int, rounds: int, ms: float) -> None:
        """Learn from the time that proposing took, unless it was as expected.

        The first reading of a draft model sets its scale: its passes grow with their tokens as this model's do.
        """
        if rounds < 1 or not (math.isfinite(ms) and ms >= 0):
            return
        if num_drafted and not self._drafting.is_known:
            self._guess_rounds(num_drafted, rounds, ms)
        self._drafting.observe(num_rows, num_drafted, rounds, ms)

    def to_dict(self) -> dict[str, Any]:
        """Plain figures for the disk; from_dict reads them back."""
        draft_start_ms, draft_round_ms, draft_row_ms, draft_token_ms = self._drafting.figures
        return {
            "knots": [[num_tokens, ms] for num_tokens, ms in zip(self._knot_tokens, self._knot_ms, strict=True)],
            "row_ms": self._row_ms,
            "kv_token_ms": self._kv_token_ms,
            "pair_ms": self._pair_ms,
            "draft_start_ms": draft_start_ms,
            "draft_round_ms": draft_round_ms,
            "draft_row_ms": draft_row_ms,
            "draft_token_ms": draft_token_ms,
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
        once_ms = (1.0 - share) * pass_ms
        self._drafting.set_figures([once_ms, once_ms, 0.0, share * pass_ms], self._knot_ms[0])

    def _set_scale(self, factor: float) -> None:
        values = self._forward.values
        self._set_forward(values[:-3] * factor, values[-3:], SPREAD_GUESSED)
        self._drafting.set_figures(self._drafting.figures, self._knot_ms[0])
        self.is_measured = True

    def _set_forward(self, ms: FloatArray, beside: FloatArray, spread: tuple[float, float]) -> None:
        self._forward = Estimate(np.concatenate([ms, beside]), start_covariance(ms, beside, spread))
        self._knot_view = self._forward.values[:-3]
        self._tidy()

    def _tidy(self) -> None:
        """Keep what the filter says within what is possible: no falling curve, no negative cost."""
        values: list[float] = self._forward.values.tolist()
        ms = values[:-3]
        if ms[0] < LEAST_MS or min(values[-3:]) < 0.0 or ms != sorted(ms):
            knots, beside = self._forward.values[:-3], self._forward.values[-3:]  # views
            knots[:] = np.maximum(monotone(knots), LEAST_MS)
            np.maximum(beside, 0.0, out=beside)
            values = self._forward.values.tolist()
        *self._knot_ms, self._row_ms, self._kv_token_ms, self._pair_ms = values


def _is_usable(shape: StepShape, ms: float) -> bool:
    return shape.num_tokens >= 1 and math.isfinite(ms) and ms > 0
