"""Speculates as far as it pays: by acceptance, by cost and by load.

Knows nothing about tokens, tensors or drafters' insides: only how likely drafts are to survive and what a step costs.
So the same object runs in the server, in the simulator and in a unit test; no random numbers, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.acceptance import Acceptance
from threefold.draft.admit import admit
from threefold.draft.appetite import Appetite
from threefold.draft.gain import Gain, StepGain, Verified
from threefold.draft.ledger import WORST_STEPS, Ledger
from threefold.draft.plain import PlainTimes
from threefold.draft.policy import DraftPolicy, FixedDrafts, NoDrafts, RowDraft
from threefold.draft.probe import Prober
from threefold.draft.yields import PRIOR_CHANCE, DraftYield

__all__ = ["Controller", "DraftPolicy", "FixedDrafts", "NoDrafts", "RowDraft"]

HOST_MS = 0.1
"""A guess at what asking for drafts that are looked up takes of the host …"""
HELD_UP_MS = 0.5
"""… where the device waits for it meanwhile …"""
HOST_ROW_MS = 0.01
"""… and for each row that is asked."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Controller:
    """The policy that learns.

    Each step it admits the drafts that make the most of the time, and settles how long the drafts asked for in the next
    may be. What is off is probed from a small budget of time, so that it can come back. Should all that be wrong, the
    ledger stops it.

    Args:
        cost: the step's cost curve; refined by observe_step.
        max_draft: longest draft ever asked for, tokens, at least 1.
        has_rounds: each further token of a draft costs a draft model's pass; else drafts are looked up.
        sight_rows: most rows of a step for which `glimpse` is called after steps without drafts; more than 0 where
            asking holds the device up.
        prior_chance: the guess for each draft before any is seen.
        is_behind: drafts are made behind the step that asks for them, so it is the next one that waits for them.
    """

    def __init__(
        self,
        cost: CostCurve,
        max_draft: int,
        *,
        has_rounds: bool = True,
        sight_rows: int = 0,
        prior_chance: float = PRIOR_CHANCE,
        is_behind: bool = False,
    ) -> None:
        _prepare()
        if not has_rounds:
            cost.guess_draft(HELD_UP_MS if sight_rows else HOST_MS, HOST_ROW_MS)
        self._cost = cost
        self._max_draft = max_draft
        self._nothing = (0.0,) * max_draft
        self._acceptance = Acceptance()
        self._appetite = Appetite(
            cost,
            max_draft,
            has_rounds=has_rounds,
            sight_rows=sight_rows,
            prior_chance=prior_chance,
            is_behind=is_behind,
        )
        self._gain = Gain()
        self._prober = Prober()
        self._ledger = Ledger()
        self._plain = PlainTimes()
        self._num_rows = 0  # that committed tokens in the last step
        self._verified: dict[str, Verified] = {}  # by drafter, of the step that is being committed

    @property
    def cost(self) -> CostCurve:
        """The cost curve, which every step refines."""
        return self._cost

    @property
    def gain_ratio(self) -> float:
        """Tokens per second with drafts over the estimate without, lately."""
        return self._gain.ratio

    @property
    def gain_error(self) -> float:
        """Standard error of gain_ratio."""
        return self._gain.error

    @property
    def gain_by_drafter(self) -> dict[str, float]:
        """gain_ratio of each drafter's drafts alone."""
        return self._gain.by_drafter

    def start(self, request_id: int, limit: int) -> None:
        """Begin without a past; a request with limit 0 is never asked for drafts."""
        self._acceptance.start(request_id)
        self._appetite.start(request_id, limit)

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._acceptance.stop(request_id)
        self._appetite.stop(request_id)

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:
        """Admit drafts by their gain and cost, apart from probes."""
        rows_given = [i for i, row in enumerate(rows) if row.survival]
        counts = [0] * len(rows)
        if rows_given and self._ledger.may_draft(self._num_rows):
            num_committing = max(self._appetite.num_planned, len(rows))
            chosen = self._choose([rows[i] for i in rows_given], num_committing, shape)
            for i, count in zip(rows_given, chosen.tolist(), strict=True):
                counts[i] = count
        return counts

    def begin_ahead(self) -> None:
        """Keep the two steps' askings apart."""
        self._appetite.begin_step()

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
        """How long a draft to ask for; nobody is asked while it would not pay, apart from probes."""
        return self._appetite.ask(request_ids, may_draft=self._ledger.may_draft(self._num_rows))

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """Ask where there is something to be had."""
        self._appetite.glimpse(seen)

    def observe(self, request_id: int, drafter: str, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verification."""
        drafted, accepted = self._verified.get(drafter, (0, 0))
        self._verified[drafter] = Verified(drafted + num_drafted, accepted + num_accepted)
        num_expected = self._acceptance.observe(request_id, num_drafted, num_accepted)
        self._appetite.judge(num_expected, num_accepted)

    def observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        """Learn what the step cost and earned; a step without a time (a fake executor's) teaches nothing."""
        verified, self._verified = self._verified, {}
        num_drafted = int(sum(drafts.num_drafted for drafts in verified.values()))
        num_accepted = int(sum(drafts.num_accepted for drafts in verified.values()))
        num_rows = self._appetite.num_ending
        has_drafts = num_drafted > 0 or draft_ms > 0 or self._appetite.is_ending_asking
        plain_shape = shape._replace(num_tokens=shape.num_tokens - num_drafted)
        self._appetite.end_step(plain_shape, forward_ms + draft_ms, draft_ms)
        self._prober.earn(forward_ms + draft_ms)
        if forward_ms <= 0.0:
            return
        predicted_ms = self._cost.forward_ms(shape)
        self._gain.observe_prediction(num_drafted > 0, predicted_ms, forward_ms)
        if not has_drafts and num_rows == shape.num_tokens:
            self._plain.observe(shape, forward_ms)
        plain_ms, drafted_ms = self._decode_ms(shape, num_rows, num_drafted)
        decode_ms = min(drafted_ms / predicted_ms, 1.0) * forward_ms
        step = StepGain(
            committed=num_committed,
            decode_ms=decode_ms + draft_ms,
            prompt_ms=forward_ms - decode_ms,
            plain_committed=num_committed - num_accepted,
            plain_decode_ms=plain_ms if has_drafts else decode_ms,
        )
        self._gain.observe(step, verified)
        if num_rows:
            saved_ms = max(step.saved_ms, -WORST_STEPS * step.plain_decode_ms) if has_drafts else 0.0
            self._ledger.settle(num_rows, forward_ms + draft_ms, saved_ms)
            self._num_rows = num_rows
        self._cost.observe(shape, forward_ms)

    def _decode_ms(self, shape: StepShape, num_rows: int, num_drafted: int) -> tuple[float, float]:
        """What the rows that commit would take by themselves, without and with their drafts."""
        if not num_rows:
            return 0.0, 0.0
        plain = StepShape(num_rows, num_rows, shape.kv_tokens * num_rows // max(shape.num_rows, 1))
        drafted = plain._replace(num_tokens=num_rows + num_drafted)
        return self._plain.expected_ms(plain, self._cost), self._cost.forward_ms(drafted)

    def _choose(self, rows: Sequence[RowDraft], num_committing: int, shape: StepShape) -> IntArray:
        """Drafts to verify of each of these rows, all of which have some at hand."""
        request_ids = [row.request_id for row in rows]
        given = [row.survival[: self._max_draft] for row in rows]
        lengths = np.array([len(survival) for survival in given])
        estimate = np.array([survival + self._nothing[len(survival) :] for survival in given])
        survival, cells, chances = self._acceptance.calibrate(request_ids, [row.drafter for row in rows], estimate)
        self._appetite.learn(request_ids, survival)
        admission = admit(
            survival,
            self._cost,
            shape,
            num_committing=num_committing,
            context_tokens=np.array([row.context_tokens for row in rows], dtype=np.float64),
            fixed_ms=self._appetite.expected_ms(),
        )
        counts = self._prober.counts(admission, lengths, self._cost, shape, is_due=self._appetite.is_probing)
        chosen = counts.nonzero()[0]
        self._acceptance.expect([request_ids[i] for i in chosen.tolist()], cells[chosen], chances[chosen])
        return counts


def _prepare() -> None:
    """Have what is compiled by numba compiled, or read from the disk, before a step depends on it."""
    acceptance, draft_yield = Acceptance(), DraftYield(1)
    cost, shape = CostCurve.uninformed(), StepShape(1, 1, 1)
    acceptance.start(0)
    survival, _, _ = acceptance.calibrate([0], [""], np.full((1, 1), 0.5))
    draft_yield.learn([1], survival)
    draft_yield.outlook(1, 1, cost, shape)
    admit(survival, cost, shape, num_committing=1)
