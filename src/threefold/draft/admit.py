"""Which drafts to verify: a pure function of their survival and of the cost curve.

Knows nothing about requests, drafters or the past. Compiled by numba, as acceptance.py is and for the same reason.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


LEAST_GAIN = 0.005
"""A gain of less than this share of the step is less than what verifying takes of the host."""


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
    num_rows = max(shape.num_rows, 1)
    beside_ms, token_ms = cost.beside_knots(shape)
    alone = StepShape(num_committing, num_committing, shape.kv_tokens * num_committing // num_rows)
    if shape.num_tokens <= num_committing:
        alone = shape
    alone_beside_ms, alone_token_ms = cost.beside_knots(alone)
    extra_ms = np.zeros(len(survival))
    if context_tokens is not None and cost.pair_ms > 0:
        extra_ms = cost.pair_ms * (context_tokens - shape.kv_tokens / num_rows)
    price = num_committing / (cost.forward_ms(shape) + fixed_ms)  # tokens a millisecond without drafts
    row_of, gains, added_ms = _ordered(survival, extra_ms, price)
    loss_ms, best, rate = _weighed(
        gains,
        added_ms + fixed_ms,
        *cost.knots,
        (shape.num_tokens, token_ms, beside_ms),
        (alone.num_tokens, alone_token_ms, alone_beside_ms),
        num_committing,
    )
    return Admission(row_of, loss_ms, best, rate)


@numba.njit(cache=True, nogil=True)
def _ordered(survival: FloatArray, extra_ms: FloatArray, price: float):
    """Rows whose drafts they are, gains, and the sums of extra_ms with the first n drafts [num_drafts + 1].

    Any sort will do: survival falls strictly along a row, so a row keeps its order.
    """
    max_draft = survival.shape[1]
    gains = survival.ravel()
    given = np.flatnonzero(gains)
    order = given[np.argsort(extra_ms[given // max_draft] * price - gains[given])]
    row_of = order // max_draft
    added_ms = np.zeros(len(order) + 1)
    added_ms[1:] = np.cumsum(extra_ms[row_of])
    return row_of, gains[order], added_ms


@numba.njit(cache=True, nogil=True)
def _weighed(gains: FloatArray, added_ms: FloatArray, tokens: FloatArray, ms: FloatArray, step, alone, num_committing):
    """(loss_ms, best, tokens_per_ms) of an `Admission`; step and alone: tokens, and what is beside the knots."""
    committed = np.empty(len(added_ms))
    step_ms = np.empty(len(added_ms))
    committed[0] = rate = 0.0
    for n in range(len(added_ms)):
        if n:
            committed[n] = committed[n - 1] + gains[n - 1]
        step_ms[n] = _ms(tokens, ms, step, n) + added_ms[n]
        alone_ms = step_ms[n] if alone[0] == step[0] else _ms(tokens, ms, alone, n) + added_ms[n]
        rate = max(rate, (num_committing + committed[n]) / alone_ms)
    value_ms = committed / rate - step_ms
    best = int(np.argmax(value_ms))
    if value_ms[best] - value_ms[0] < LEAST_GAIN * step_ms[0]:
        best = 0
    return np.maximum(value_ms[best] - value_ms, 0.0), best, rate


@numba.njit(cache=True, nogil=True)
def _ms(tokens: FloatArray, ms: FloatArray, step, num_added: int) -> float:
    """A forward pass with so many drafts; beyond its last knot the curve goes on as steeply."""
    num_tokens, token_ms, beside_ms = step
    at = num_tokens + num_added
    high = min(max(np.searchsorted(tokens, at), 1), len(tokens) - 1)
    slope = (ms[high] - ms[high - 1]) / (tokens[high] - tokens[high - 1])
    return ms[high - 1] + slope * max(at - tokens[high - 1], 0.0) + token_ms * at + beside_ms
