"""How long steps really take: the cost curve, times what it was lately wrong by.

The curve knows forward passes; the gap between two tokens also has the host in it, the socket, a busy neighbour. So
each step's real time is held against the curve's, by size of step. A target of the time between tokens is one of a mean
over an answer, so what is promised stands on the 90th percentile of the mean ratio of RUN_STEPS steps, estimated from
the last ones of that size as m + 1.28 · s / sqrt(RUN_STEPS). A reading counts as at most CLIP times what was promised,
so one pause rules nothing out, and a machine that has become slower is known within some twenty. Knows no requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from threefold.cost import CostCurve, StepShape

MEMORY_STEPS = 32
"""Readings of one size that count."""
STALE_STEPS = 256
"""A size that no step had for so long counts as not seen: what kept it away may be over."""
LEAST_READINGS = 4
"""With fewer, a size goes by its nearest neighbour's error, so that one slow step rules nothing out."""
RUN_STEPS = 8
"""Steps whose mean time is promised."""
CLIP = 1.5
"""A reading further above what was promised counts as this."""
DEVIATIONS = 1.28
"""Of nine in ten runs, none is further above the mean than so many standard deviations (normal law)."""
FIRST_ERROR = 1.1
"""Real over predicted while nothing was read."""
_NUM_SIZES = 40


class _Size:
    """The ratios real over predicted of steps of one size."""

    __slots__ = ("last_step", "ratios")

    def __init__(self) -> None:
        self.ratios: deque[float] = deque(maxlen=MEMORY_STEPS)
        self.last_step = 0


class Pace:
    """Milliseconds from one step's end to the next one's, in nine runs of ten no more.

    Args:
        curve: what a step costs.
        is_learning: refine the curve by every step; False where somebody else who holds it does.
    """

    def __init__(self, curve: CostCurve, *, is_learning: bool) -> None:
        self._curve = curve
        self._is_learning = is_learning
        self._sizes: dict[int, _Size] = {}
        self._errors: dict[int, float] = {}  # of sizes with enough readings, none of them stale
        self._nearest = [0] * _NUM_SIZES  # the size among them that each goes by
        self._num_steps = 0

    def ms(self, num_tokens: int, num_rows: int, kv_tokens: float) -> float:
        """A step with so many tokens, rows and KV tokens, without drafting."""
        return self._curve.forward_ms(StepShape(num_tokens, num_rows, int(kv_tokens))) * self.error(num_tokens)

    def error(self, num_tokens: int) -> float:
        """Real over predicted for a step of so many tokens."""
        return self._errors[self._nearest[num_tokens.bit_length()]] if self._errors else FIRST_ERROR

    def observe(self, shape: StepShape, forward_ms: float, period_ms: float) -> None:
        """A step took this long by itself, and so long passed between the end of the one before and its own.

        A step without a time (a fake executor's) leaves the curve as it is.
        """
        predicted_ms = self._curve.ms(shape)
        if self._is_learning and forward_ms > 0:
            self._curve.observe(shape, forward_ms)
        if predicted_ms > 0 and period_ms > 0:
            self._num_steps += 1
            self._note(shape.num_tokens.bit_length(), period_ms / predicted_ms)

    def most_tokens(self, limit_ms: float, num_rows: int, kv_tokens: float, most: int) -> int:
        """Most tokens, at most `most`, that one more row may feed beside num_rows rows of one token each; 0 = none."""
        return self._largest(lambda n: self.ms(num_rows + n, num_rows + 1, kv_tokens + n), limit_ms, most)

    def most_extra(self, limit_ms: float, shape: StepShape, most: int) -> int:
        """Most tokens, at most `most`, that the rows of a step may feed besides those it has; 0 = none."""
        num_tokens, num_rows, kv_tokens, _ = shape
        return self._largest(lambda n: self.ms(num_tokens + n, num_rows, kv_tokens + n), limit_ms, most)

    def most_rows(self, limit_ms: float, context_tokens: float, num_beside: int, most: int) -> int:
        """Most rows of one token and such a context that a step may hold beside num_beside prompt tokens; 0 = none."""
        return self._largest(lambda n: self.ms(n + num_beside, n + 1, n * context_tokens), limit_ms, most)

    def _largest(self, ms: Callable[[int], float], limit_ms: float, most: int) -> int:
        """The largest count in [0, most] that keeps the limit, by halving: times all but never fall with the count."""
        if most < 1 or ms(1) > limit_ms:
            return 0
        if ms(most) <= limit_ms:
            return most
        low, high = 1, most  # low keeps the limit, high does not
        while high - low > 1:
            middle = (low + high) // 2
            if ms(middle) <= limit_ms:
                low = middle
            else:
                high = middle
        return low

    def _note(self, bits: int, ratio: float) -> None:
        """One more reading of a size."""
        before = set(self._errors)
        size = self._sizes.setdefault(bits, _Size())
        if self._is_stale(size):
            size.ratios.clear()
            self._errors.pop(bits, None)
        size.last_step = self._num_steps
        size.ratios.append(min(ratio, CLIP * self._errors.get(bits, ratio)))
        if len(size.ratios) >= LEAST_READINGS:
            self._errors[bits] = _error(size.ratios)
        if self._num_steps % MEMORY_STEPS == 0:
            self._errors = {one: error for one, error in self._errors.items() if not self._is_stale(self._sizes[one])}
        if self._errors and before != self._errors.keys():
            sizes = sorted(self._errors)
            self._nearest = [min(sizes, key=lambda one: abs(one - other)) for other in range(_NUM_SIZES)]

    def _is_stale(self, size: _Size) -> bool:
        return size.last_step < self._num_steps - STALE_STEPS


def _error(ratios: Sequence[float]) -> float:
    mean = sum(ratios) / len(ratios)
    variance = sum([(ratio - mean) ** 2 for ratio in ratios]) / len(ratios)
    return mean + DEVIATIONS * math.sqrt(variance / RUN_STEPS)
