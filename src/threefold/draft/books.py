"""What steps took and earned, booked: against the curve, against the same work without drafts, and in the ledger.

Knows nothing about who is asked or what is admitted; those ask here whether they still may.
"""

from __future__ import annotations

from collections.abc import Mapping

from threefold.cost import CostCurve, StepShape
from threefold.draft.gain import Gain, StepGain, Verified
from threefold.draft.ledger import WORST_STEPS, Ledger
from threefold.draft.plain import PlainTimes
from threefold.draft.quiet import MeanStep

SURPRISE = 1.25
"""Steps with drafts that take so many times what the curve said have something about them that it does not know."""


class Books:
    """All that is learned from steps that are over.

    Args:
        cost: the step's cost curve; refined by every step.

    Attributes:
        gain: what drafts earn lately.
        needs_plain: steps with drafts took surprisingly long and none without was measured at this load, so there is
            nothing to hold them against: the curve learns from them, too.
    """

    def __init__(self, cost: CostCurve) -> None:
        self.gain = Gain()
        self.needs_plain = False
        self._cost = cost
        self._ledger = Ledger()
        self._plain = PlainTimes()

    def may_draft(self, num_rows: int) -> bool:
        """Whether a step of about so many rows may draft."""
        return self._ledger.may_draft(num_rows)

    def is_surprise(self, shape: StepShape, forward_ms: float) -> bool:
        """Whether a step with drafts took so long that the next decision should know of it."""
        return forward_ms > SURPRISE * self._cost.forward_ms(shape)

    def book_quiet(self, mean: MeanStep) -> None:
        """Steps of one token a row that drafts had nothing to do with."""
        num_steps, shape, ms, scatter, num_committed = mean
        self._ledger.settle(shape.num_rows, ms, ms, 0.0, num_steps)
        self._plain.observe(shape, ms, num_steps)
        self.gain.observe(StepGain(num_committed, ms, 0.0, num_committed, ms), {}, num_steps)
        self.gain.observe_prediction(False, self._cost.forward_ms(shape), ms, num_steps, scatter)
        self._cost.observe(shape, ms, num_steps)

    def book(
        self,
        shape: StepShape,
        forward_ms: float,
        draft_ms: float,
        num_committed: int,
        *,
        num_rows: int,
        verified: Mapping[str, Verified],
        has_drafts: bool,
    ) -> None:
        """Any other step.

        Args:
            shape: the step's.
            forward_ms: its forward pass, more than 0.
            draft_ms: what drafts took of it beside that.
            num_committed: tokens.
            num_rows: rows that committed any.
            verified: by drafter.
            has_drafts: it verified drafts, asked for some, or was held up by others that did.
        """
        num_tokens, num_step_rows, kv_tokens, _ = shape
        num_drafted = sum([drafts.num_drafted for drafts in verified.values()])
        num_accepted = sum([drafts.num_accepted for drafts in verified.values()])
        predicted_ms = self._cost.forward_ms(shape)
        self.gain.observe_prediction(num_drafted > 0, predicted_ms, forward_ms)
        is_surprise = num_drafted > 0 and self.is_surprise(shape, forward_ms)
        self.needs_plain = is_surprise and not self._plain.knows(num_rows)
        if not num_drafted and num_rows == num_tokens:
            self._plain.observe(shape, forward_ms)
        plain = StepShape(num_rows, num_rows, kv_tokens * num_rows // max(num_step_rows, 1))
        decode_ms = forward_ms
        if num_rows + num_drafted < num_tokens:  # there are prompts in the step
            decode_ms *= self._decode_share(plain, num_drafted, predicted_ms)
        step = StepGain(
            committed=num_committed,
            decode_ms=decode_ms + draft_ms,
            prompt_ms=forward_ms - decode_ms,
            plain_committed=num_committed - num_accepted,
            plain_decode_ms=self._plain.expected_ms(plain, self._cost) if has_drafts and num_rows else decode_ms,
        )
        self.gain.observe(step, verified)
        if num_rows:
            saved_ms = max(step.saved_ms, -WORST_STEPS * step.plain_decode_ms) if has_drafts else 0.0
            self._ledger.settle(num_rows, step.plain_decode_ms, forward_ms + draft_ms, saved_ms)
        self._cost.observe(shape, forward_ms)

    def _decode_share(self, plain: StepShape, num_drafted: int, predicted_ms: float) -> float:
        """Of a step's time, what the rows that commit would take by themselves with their drafts."""
        if not plain.num_rows:
            return 0.0
        decode_ms = self._cost.forward_ms(plain._replace(num_tokens=plain.num_tokens + num_drafted))
        return min(decode_ms / predicted_ms, 1.0)
