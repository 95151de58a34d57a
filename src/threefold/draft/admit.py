"""Which drafts to verify: a pure function of their survival and of the cost curve.

Knows nothing about requests, drafters or the past. Compiled by numba, as acceptance.py is and for the same reason.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.curve import forward_ms
from threefold.draft.order import falling

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEAST_GAIN = 0.005
"""A gain of less than this share of the step is less than what verifying takes of the host."""
_NO_EXTRA: FloatArray = np.zeros(0)


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
    context_tokens: Sequence[float] | None = None,
    fixed_ms: float = 0.0,
    draft_ms: float = 0.0,
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
        fixed_ms: time that passes besides the forward pass, whatever is admitted, and …
        draft_ms: … for each draft that is.
    """
    num_rows = max(shape.num_rows, 1)
    num_tokens, beside = shape.num_tokens, cost.beside_knots(shape)
    num_tokens_alone, beside_alone = num_tokens, beside
    if num_tokens > num_committing:
        alone = StepShape(num_committing, num_committing, shape.kv_tokens * num_committing // num_rows)
        num_tokens_alone, beside_alone = num_committing, cost.beside_knots(alone)
    extra_ms = _NO_EXTRA
    if context_tokens is not None and cost.pair_ms > 0:
        extra_ms = cost.pair_ms * (np.array(context_tokens) - shape.kv_tokens / num_rows)
    price = num_committing / (cost.forward_ms(shape) + fixed_ms)  # tokens a millisecond without drafts
    return Admission(
        *_admit(
            survival,
            extra_ms,
            price,
            *cost.knots,
            num_tokens,
            *beside,
            num_tokens_alone,
            *beside_alone,
            fixed_ms,
            draft_ms,
            num_committing,
        )
    )


@numba.njit(cache=True, nogil=True)
def _admit(
    survival: FloatArray,
    extra_ms: FloatArray,
    price: float,
    tokens: FloatArray,
    ms: FloatArray,
    num_tokens: int,
    beside_ms: float,
    token_ms: float,
    num_tokens_alone: int,
    beside_alone_ms: float,
    token_alone_ms: float,
    fixed_ms: float,
    draft_ms: float,
    num_committing: int,
):
    """The fields of an `Admission`.

    Of the step, and of the step without its prompts (alone), there are the tokens and what it takes beside the knots;
    extra_ms is what a draft of a row takes more than the average, [num_rows], or empty where none does.
    """
    max_draft = survival.shape[1]
    order = _ordered(survival, extra_ms, price)
    row_of = order // max_draft
    num_drafts = len(order)
    committed, step_ms = np.empty(num_drafts + 1), np.empty(num_drafts + 1)
    committed[0] = rate = 0.0
    for n in range(num_drafts + 1):
        if n:
            committed[n] = committed[n - 1] + survival[row_of[n - 1], order[n - 1] % max_draft]
            fixed_ms += draft_ms
            if len(extra_ms):
                fixed_ms += extra_ms[row_of[n - 1]]
        step_ms[n] = forward_ms(tokens, ms, num_tokens + n, beside_ms, token_ms) + fixed_ms
        alone_ms = step_ms[n]
        if num_tokens_alone != num_tokens:
            alone_ms = forward_ms(tokens, ms, num_tokens_alone + n, beside_alone_ms, token_alone_ms) + fixed_ms
        rate = max(rate, (num_committing + committed[n]) / alone_ms)
    value_ms = committed / rate - step_ms
    best = int(np.argmax(value_ms))
    if value_ms[best] - value_ms[0] < LEAST_GAIN * step_ms[0]:
        best = 0
    return row_of, np.maximum(value_ms[best] - value_ms, 0.0), best, rate


@numba.njit(cache=True, nogil=True)
def _ordered(survival: FloatArray, extra_ms: FloatArray, price: float) -> IntArray:
    """Where in survival the drafts lie, the one that gains most first.

    Survival falls strictly along a row, so a row keeps its order.
    """
    max_draft = survival.shape[1]
    given = np.flatnonzero(survival)
    gains = survival.ravel()[given]
    if len(extra_ms):
        gains = gains - extra_ms[given // max_draft] * price
    return given[falling(gains)]
