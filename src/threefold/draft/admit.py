"""Which drafts to verify: a pure function of their survival and of the cost curve.

Knows nothing about requests, drafters or the past.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Admission(NamedTuple):
    """The drafts at hand in the order of their gain, and what it means to verify the first n of them."""

    row_of: IntArray
    """[num_drafts], whose draft it is; a row's drafts stand in their own order."""
    loss_ms: FloatArray
    """[num_drafts + 1], time lost against the best number when the first n are verified; 0 at the best."""
    best: int
    """Drafts to verify in all."""
    tokens_per_ms: float
    """Expected committed tokens a millisecond at the best, prompts in the same step set aside."""

    def counts(self, num_drafts: int, num_rows: int) -> IntArray:
        """[num_rows], drafts to verify of each row when the first num_drafts are."""
        return np.bincount(self.row_of[:num_drafts], minlength=num_rows)


def admit(
    survival: FloatArray,
    cost: CostCurve,
    shape: StepShape,
    *,
    num_committing: int,
    context_tokens: FloatArray | None = None,
    fixed_ms: float = 0.0,
) -> Admission:
    """Order drafts by their gain and find the number that makes the most of each millisecond, none included.

    The gain of a draft is its survival: the expected tokens it adds. Costs have plateaus (eight tokens cost what one
    does, then it jumps), so the best number is sought among all prefixes of the ordered list, not climbed to.

    With prompts in the step, time has the price that it has in a step without them: a prompt's cost is owed whatever
    the drafts, so it must not make them look cheap. (Tokens over time is a fractional programme; at its optimum the
    value is tokens - rate * ms with the optimal rate: Dinkelbach, 1967.)

    Args:
        survival: [num_rows, max_draft], not increasing along a row, 0 where there is no draft.
        cost: milliseconds of a step.
        shape: the step without any draft.
        num_committing: rows that commit a token whatever the drafts, at least 1.
        context_tokens: [num_rows], KV tokens that a draft of the row looks at; None = the step's average.
        fixed_ms: time that passes besides the forward pass, whatever is admitted.
    """
    max_draft = survival.shape[1]
    gains = survival.ravel()
    price = num_committing / (cost.forward_ms(shape) + fixed_ms)  # tokens a millisecond without drafts
    extra_ms = np.zeros(gains.size)
    if context_tokens is not None and cost.pair_ms > 0:
        average = shape.kv_tokens / max(shape.num_rows, 1)
        extra_ms = np.repeat(cost.pair_ms * (context_tokens - average), max_draft)
    # Any sort will do: survival falls strictly along a row, so a row keeps its order.
    order = (extra_ms * price - gains).argsort()
    order = order[gains[order] > 0]
    tokens = _sums(gains[order])  # expected beyond one a row
    added = np.arange(order.size + 1.0)
    added_ms = _sums(extra_ms[order]) + fixed_ms
    step_ms = cost.forward_ms_many(added + shape.num_tokens, shape) + added_ms
    alone_ms = step_ms
    if shape.num_tokens > num_committing:
        kv_tokens = shape.kv_tokens * num_committing // max(shape.num_rows, 1)
        alone = StepShape(num_committing, num_committing, kv_tokens)
        alone_ms = cost.forward_ms_many(added + num_committing, alone) + added_ms
    rate = float(((tokens + num_committing) / alone_ms).max())
    value_ms = tokens / rate - step_ms
    best = int(value_ms.argmax())
    return Admission(order // max_draft, value_ms[best] - value_ms, best, rate)


def _sums(values: FloatArray) -> FloatArray:
    """[n + 1], sums of the first 0, 1, … n values."""
    sums = np.zeros(values.size + 1)
    values.cumsum(out=sums[1:])
    return sums
