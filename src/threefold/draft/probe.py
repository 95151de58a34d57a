"""Tries what does not seem to pay, within a budget of time, so that a wrong belief cannot last.

Knows nothing about what the trials teach. Beliefs that are acted on correct themselves; these three would not:

    plain   what a step costs without drafts, when drafts always pay
    wide    what a step with more drafts costs, when only a few ever pay
    row     whether one request's drafts have become good, when they never seem to pay
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.admit import Admission

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PROBE_SHARE = 0.001
"""Share of all time that a kind of probe may lose; there are three where drafts do not seem to pay …"""
PLAIN_SHARE = 0.002
"""… and where they do, this for steps without."""
START_STEPS = 0.1
"""A budget begins with this many steps' time."""
EVERY_STEPS = 8
"""Steps between two probes."""
MAX_STEPS = 2.0
"""A budget never holds more: a quiet spell does not end in a burst."""
NEW_LOAD = 0.3
"""A load that differs by this share from that of the last plain probe deserves one of its own."""


class ProbeBudget:
    """Milliseconds that a kind of probe may lose; a fixed share of the time that passes.

    What costs more than it usually holds is saved up for: a price that was never right would else stand for ever.
    """

    def __init__(self, share: float = PROBE_SHARE, *, start_steps: float = START_STEPS) -> None:
        self.ms = 0.0
        self._share = share
        self._start_steps = start_steps
        self._is_new = True
        self._saving_for_ms = 0.0  # the cheapest of what could not be paid

    def earn(self, step_ms: float, num_steps: int = 1) -> None:
        """So many steps took this long each."""
        earned_ms = self._share * step_ms * num_steps
        if self._is_new:
            self._is_new = False
            earned_ms += (self._start_steps - self._share) * step_ms
        self.ms = min(self.ms + earned_ms, max(MAX_STEPS * step_ms, self._saving_for_ms))

    def spend(self, ms: float) -> bool:
        """Take ms if they are there."""
        if ms > self.ms:
            self._saving_for_ms = min(ms, self._saving_for_ms or ms)
            return False
        self.ms -= ms
        self._saving_for_ms = 0.0
        return True

    def owe(self, ms: float) -> None:
        """What was spent came to so much more; what it came to less is not paid back."""
        self.ms -= max(ms, 0.0)


class Prober:
    """Takes turns between the three kinds of probe."""

    def __init__(self) -> None:
        self._plain = ProbeBudget(PLAIN_SHARE)
        self._wide = ProbeBudget()
        self._row = ProbeBudget()
        self._turn = 0
        self._plain_tokens = 0
        self._num_waited = 0

    def earn(self, step_ms: float, num_steps: int = 1) -> None:
        """So many steps took this long each."""
        for budget in (self._plain, self._wide, self._row):
            budget.earn(step_ms, num_steps)

    def counts(
        self, admission: Admission, num_rows: int, cost: CostCurve, shape: StepShape, *, is_due: bool
    ) -> IntArray:
        """Drafts to verify of each row: the best number, or now and then a probe.

        Args:
            admission: the drafts at hand.
            num_rows: rows that have any.
            cost: the step's cost curve.
            shape: the step without any draft.
            is_due: more drafts than usual were asked for as a probe, so this is the moment.
        """
        self._num_waited += 1
        kind: int | None = 0 if self._is_new(shape) else None
        if is_due or self._num_waited >= EVERY_STEPS:
            self._num_waited = 0
            self._turn += 1
            kind = self._turn % 3
        if kind == 0 and admission.best > 0 and self._plain.spend(float(admission.loss_ms[0])):
            self._plain_tokens = shape.num_tokens
            return admission.counts(0, num_rows)
        if kind == 1:
            return admission.counts(self._widest(admission), num_rows)
        if kind == 2:
            return self._with_one_row_more(admission, num_rows, cost, shape)
        return admission.counts(admission.best, num_rows)

    def _is_new(self, shape: StepShape) -> bool:
        """True when no plain probe has seen a load like this lately."""
        return abs(shape.num_tokens - self._plain_tokens) > NEW_LOAD * self._plain_tokens

    def _widest(self, admission: Admission) -> int:
        """The most drafts that the budget allows."""
        affordable = (admission.loss_ms <= self._wide.ms).nonzero()[0]
        widest = max(int(affordable[-1]), admission.best)
        self._wide.spend(float(admission.loss_ms[widest]))
        return widest

    def _with_one_row_more(self, admission: Admission, num_rows: int, cost: CostCurve, shape: StepShape) -> IntArray:
        """The best number and, if the row whose turn it is has none, as many of its drafts as the budget allows."""
        counts = admission.counts(admission.best, num_rows)
        row = self._turn // 3 % num_rows
        if not counts[row]:
            num_tokens, num_step_rows, kv_tokens, _ = shape
            num_tokens += admission.best
            best_ms = cost.forward_ms(StepShape(num_tokens, num_step_rows, kv_tokens))
            for count in range(int((admission.row_of == row).sum()), 0, -1):
                extra_ms = cost.forward_ms(StepShape(num_tokens + count, num_step_rows, kv_tokens)) - best_ms
                if extra_ms <= self._row.ms:
                    self._row.spend(extra_ms)
                    counts[row] = count
                    break
        return counts
