"""Speculates as far as it pays: by acceptance, by cost and by load.

Knows nothing about tokens, tensors or drafters' insides: only how likely drafts are to survive and what a step costs.
So the same object runs in the server, in the simulator and in a unit test; no random numbers, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.acceptance import Acceptance
from threefold.draft.admit import admit
from threefold.draft.appetite import Appetite
from threefold.draft.books import Books
from threefold.draft.gain import Verified
from threefold.draft.policy import DraftPolicy, FixedDrafts, NoDrafts, RowDraft
from threefold.draft.probe import Prober
from threefold.draft.quiet import QuietSteps
from threefold.draft.yields import PRIOR_CHANCE, DraftYield

__all__ = ["Controller", "DraftPolicy", "FixedDrafts", "NoDrafts", "RowDraft"]

HOST_MS = 0.1
"""A guess at what asking for drafts that are looked up takes of the host …"""
HELD_UP_MS = 0.5
"""… where the device waits for it meanwhile …"""
HOST_ROW_MS = 0.01
"""… and for each row that is asked."""
HOST_DRAFT_MS = 0.001
"""A guess at what each draft takes the host that is verified, where the device waits for it: it cannot be told from
what rows take, since it grows with them."""


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

    is_learning = True

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
        for prepare in PREPARE:
            prepare()
        if not has_rounds:
            cost.guess_draft(HELD_UP_MS if sight_rows else HOST_MS, HOST_ROW_MS)
        self._cost = cost
        self._max_draft = max_draft
        self._acceptance = Acceptance(max_draft)
        self._appetite = Appetite(
            cost,
            max_draft,
            has_rounds=has_rounds,
            sight_rows=sight_rows,
            prior_chance=prior_chance,
            is_behind=is_behind,
            verify_ms=HOST_DRAFT_MS if sight_rows else 0.0,
        )
        self._prober = Prober()
        self._books = Books(cost)
        self._quiet = QuietSteps()  # that are over, but nobody has learned from yet
        self._num_rows = 0  # that committed tokens in the last step
        self._verified: dict[str, tuple[int, int]] = {}  # by drafter, of the step that is being committed
        self._passed: dict[int, int] = {}  # by request, of the same
        self._later: list[Callable[[], object]] = []  # what no decision waits for

    @property
    def cost(self) -> CostCurve:
        """The cost curve, which every step refines; up to date now, and a few steps behind later on."""
        self.catch_up()
        self._digest()
        return self._cost

    @property
    def gain_ratio(self) -> float:
        """Tokens per second with drafts over the estimate without, lately."""
        self.catch_up()
        self._digest()
        return self._books.gain.ratio

    @property
    def gain_error(self) -> float:
        """Standard error of gain_ratio."""
        self.catch_up()
        self._digest()
        return self._books.gain.error

    @property
    def gain_by_drafter(self) -> dict[str, float]:
        """gain_ratio of each drafter's drafts alone."""
        self.catch_up()
        self._digest()
        return self._books.gain.by_drafter

    def start(self, request_id: int, limit: int) -> None:
        """Begin without a past; a request with limit 0 is never asked for drafts."""
        self._acceptance.start(request_id)
        self._appetite.start(request_id, limit)

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self.catch_up()
        self._acceptance.stop(request_id)
        self._appetite.stop(request_id)

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:
        """Admit drafts by their gain and cost, apart from probes."""
        given = [row for row in rows if row.survival]
        if not given or not self._books.may_draft(self._num_rows):
            return [0] * len(rows)
        self._digest()
        counts = self._choose(given, max(self._appetite.num_planned, len(rows)), shape)
        if len(given) == len(rows):
            return counts
        of_given = iter(counts)
        return [next(of_given) if row.survival else 0 for row in rows]

    def begin_ahead(self) -> None:
        """Keep the two steps' askings apart."""
        self._appetite.begin_step()

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
        """How long a draft to ask for; nobody is asked while it would not pay, apart from probes."""
        return self._appetite.ask(request_ids, may_draft=self._books.may_draft(self._num_rows))

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """Ask where there is something to be had."""
        self._appetite.glimpse(seen)

    def observe(self, request_id: int, drafter: str, num_drafted: int, num_accepted: int) -> None:
        """Learn from a verification."""
        drafted, accepted = self._verified.get(drafter, (0, 0))
        self._verified[drafter] = drafted + num_drafted, accepted + num_accepted
        self._passed[request_id] = num_accepted
        self._acceptance.observe(request_id, num_drafted, num_accepted)

    def observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        """Learn what the step cost and earned; a step without a time (a fake executor's) teaches nothing."""
        self.catch_up()
        if not self._verified and draft_ms <= 0.0 < forward_ms and self._appetite.is_quiet:
            self._observe_quiet(shape, forward_ms, num_committed)
        else:
            self._digest()
            self._observe_step(shape, forward_ms, draft_ms, num_committed)

    def catch_up(self) -> None:
        """Learn from what has been chosen and observed."""
        for learn in self._later:
            learn()
        self._later.clear()

    def _observe_quiet(self, shape: StepShape, forward_ms: float, num_committed: int) -> None:
        """A step that drafts have nothing to do with, like most; learn from it together with the next ones."""
        quiet, num_rows = self._quiet, self._appetite.num_ending
        if num_rows < shape.num_tokens:  # there are prompts in it, and hardly two have the same
            self._earn(forward_ms)
            self._books.book(shape, forward_ms, 0.0, num_committed, num_rows=num_rows, verified={}, has_drafts=False)
            self._num_rows = num_rows or self._num_rows
        else:
            if not quiet.fits(num_rows, forward_ms):
                self._digest()
            quiet.add(shape, forward_ms, num_committed)
            self._num_rows = num_rows
        if self._appetite.end_quiet_step():
            self._digest()
            self._appetite.decide(shape)

    def _digest(self) -> None:
        """Learn from the quiet steps at hand."""
        if self._quiet.num_steps:
            mean = self._quiet.take()
            self._earn(mean.ms, mean.num_steps)
            self._books.book_quiet(mean)

    def _earn(self, ms: float, num_steps: int = 1) -> None:
        self._appetite.earn(ms, num_steps)
        self._prober.earn(ms, num_steps)

    def _observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        """A step with drafts, one that asks, or one behind such a step."""
        verified = {drafter: Verified(*counts) for drafter, counts in self._verified.items()}
        self._verified.clear()
        if verified:
            self._appetite.judge(self._acceptance.learn(), self._passed)
            self._passed.clear()
        num_drafted = sum([drafts.num_drafted for drafts in verified.values()])
        num_rows = self._appetite.num_ending
        has_drafts = num_drafted > 0 or draft_ms > 0 or self._appetite.is_ending_asking
        self._prober.earn(forward_ms + draft_ms)
        plain_shape = StepShape(shape.num_tokens - num_drafted, shape.num_rows, shape.kv_tokens)
        self._appetite.end_step(plain_shape, forward_ms + draft_ms, draft_ms, num_drafted)
        if forward_ms > 0.0:
            book = partial(self._books.book, num_rows=num_rows, verified=verified, has_drafts=has_drafts)
            self._later.append(partial(book, shape, forward_ms, draft_ms, num_committed))
            if num_drafted and self._books.is_surprise(shape, forward_ms):
                self.catch_up()
            self._num_rows = num_rows or self._num_rows

    def _choose(self, rows: Sequence[RowDraft], num_committing: int, shape: StepShape) -> list[int]:
        """Drafts to verify of each of these rows, all of which have some at hand."""
        request_ids, estimates, drafters, context_tokens = zip(*rows, strict=True)
        survival = self._acceptance.calibrate(request_ids, drafters, estimates)
        self._later.append(partial(self._appetite.learn, request_ids, survival))
        admission = admit(
            survival,
            self._cost,
            shape,
            num_committing=num_committing,
            context_tokens=context_tokens,
            fixed_ms=self._appetite.expected_ms(),
            draft_ms=self._appetite.verify_ms,
        )
        if self._books.needs_plain:
            return [0] * len(rows)
        is_due = self._appetite.is_probing
        counts: list[int] = self._prober.counts(admission, len(rows), self._cost, shape, is_due=is_due).tolist()
        return counts


def prepare_outlook() -> None:
    """Have what settles lengths to ask for compiled, or read from the disk."""
    DraftYield(1).outlook(1, 1, CostCurve.uninformed(), StepShape(1, 1, 1))


def prepare_admission() -> None:
    """The same of what admits drafts."""
    survival = _calibrated(Acceptance(1))
    admit(survival, CostCurve.uninformed(), StepShape(1, 1, 1), num_committing=1)


def prepare_learning() -> None:
    """The same of what learns from verifications."""
    acceptance = Acceptance(1)
    survival = _calibrated(acceptance)
    acceptance.observe(0, 1, 1)
    acceptance.learn()
    draft_yield = DraftYield(1)
    draft_yield.learn([1], survival)
    draft_yield.outlook(1, 1, CostCurve.uninformed(), StepShape(1, 1, 1))  # takes in what came


def _calibrated(acceptance: Acceptance) -> npt.NDArray[np.float64]:
    acceptance.start(0)
    return acceptance.calibrate([0], [""], [[0.5]])


PREPARE = (prepare_outlook, prepare_admission, prepare_learning)
"""All of it, before a step depends on it."""
