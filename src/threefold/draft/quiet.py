"""Steps in which nothing happened but a token for each row, kept together until somebody wants to learn from them.

With speculation off for want of gain these are nearly all steps, and they may take less than a millisecond: what is
done for each must cost next to nothing. Nothing is passed over; all that learns takes the mean for what it is, as many
readings. Only steps that are alike are put together, so the mean hides nothing either.
"""

from __future__ import annotations

from typing import NamedTuple

from threefold.cost import StepShape

ALIKE_ROWS = 1 / 16
"""Share of the rows by which steps may differ …"""
ALIKE_MS = 0.2
"""… and share of the time: a step that took unusually long is looked at by itself."""


class MeanStep(NamedTuple):
    """So many steps, each as they were on average."""

    num_steps: int
    shape: StepShape
    ms: float
    scatter: float
    """Variance of their times, relative."""
    num_committed: float


class QuietSteps:
    """Adds up steps of one token a row, without drafts and asking nobody."""

    __slots__ = (
        "_first_ms",
        "_first_rows",
        "_kv_tokens",
        "_ms",
        "_num_committed",
        "_num_rows",
        "_squares",
        "num_steps",
    )

    def __init__(self) -> None:
        self.num_steps = 0
        self._first_rows = self._num_rows = self._kv_tokens = self._num_committed = 0
        self._first_ms = self._ms = self._squares = 0.0

    def fits(self, num_rows: int, ms: float) -> bool:
        """Whether such a step is like those at hand."""
        return not self.num_steps or (
            abs(num_rows - self._first_rows) <= ALIKE_ROWS * self._first_rows
            and abs(ms - self._first_ms) <= ALIKE_MS * self._first_ms
        )

    def add(self, shape: StepShape, ms: float, num_committed: int) -> None:
        """One step more."""
        if not self.num_steps:
            self._first_rows, self._first_ms = shape.num_rows, ms
        self.num_steps += 1
        self._num_rows += shape.num_rows
        self._kv_tokens += shape.kv_tokens
        self._ms += ms
        self._squares += ms * ms
        self._num_committed += num_committed

    def take(self) -> MeanStep:
        """All at hand, at least one; from then on there are none."""
        num_steps = self.num_steps
        num_rows, ms = round(self._num_rows / num_steps), self._ms / num_steps
        mean = MeanStep(
            num_steps,
            StepShape(num_rows, num_rows, self._kv_tokens // num_steps),
            ms,
            max(self._squares / num_steps / (ms * ms) - 1.0, 0.0),
            self._num_committed / num_steps,
        )
        self.num_steps = self._num_rows = self._kv_tokens = self._num_committed = 0
        self._ms = self._squares = 0.0
        return mean
