"""How long a draft to ask each request for, before anybody has drafted it.

Knows nothing about tokens. Asking costs time too: a draft model's forward passes, or microseconds a row for looking up
n-grams. While that is next to nothing every request is asked for all it may have; otherwise what asking yields decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.probe import EVERY_STEPS, ProbeBudget
from threefold.draft.yields import DraftYield

FloatArray = npt.NDArray[np.float64]

CHEAP_SHARE = 0.0025
"""Share of a step's time below which asking is not worth a thought."""
SETTLE_EVERY_STEPS = 4
"""The length to ask for is thought over this often, and whenever the number of rows changes."""
ASK_AGAIN_STEPS = 32
"""A request whose drafts never come to anything is asked again this often."""
MEMORY_ASKS = 16.0
"""Askings over which a request's yield is averaged."""


class _RequestState:
    __slots__ = ("limit", "yielded")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.yielded = float(limit)
        """Accepted drafts that an asking can be expected to bring, lately; hopeful at first."""


class Appetite:
    """Settles, step by step, who is asked for drafts and how long they may be.

    Args:
        cost: the step's cost curve; it learns here what asking costs.
        max_draft: longest draft ever asked for, tokens.

    Attributes:
        is_probing: the drafts now at hand are more than it paid to ask for.
    """

    def __init__(self, cost: CostCurve, max_draft: int) -> None:
        self._cost = cost
        self._max_draft = max_draft
        self._budget = ProbeBudget()
        self._yield = DraftYield(max_draft)
        self._requests: dict[int, _RequestState] = {}
        self._step = 0
        self._length = 1  # until it is known what asking costs
        self._num_rows = 0
        self._least_yield = 0.0
        self._probed: int | None = None
        self._probe_length = 0
        self.is_probing = False
        self._asking: dict[int, int] = {}
        self._asked: dict[int, int] = {}

    def start(self, request_id: int, limit: int) -> None:
        """A request that may be asked for up to limit tokens."""
        self._requests[request_id] = _RequestState(min(limit, self._max_draft))

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._requests.pop(request_id, None)
        self._asked.pop(request_id, None)

    def ask(self, request_id: int) -> int:
        """Length to ask the request for after the step being planned; called once for each row that commits."""
        state = self._requests[request_id]
        length = self._probe_length or self._length
        if state.yielded < self._least_yield and (self._step + request_id) % ASK_AGAIN_STEPS:
            length = 0
        if request_id == self._probed:
            length = self._max_draft
        self._asking[request_id] = length = min(length, state.limit)
        return length

    @property
    def num_planned(self) -> int:
        """Rows that commit a token in the step being planned."""
        return len(self._asking)

    def expected_ms(self) -> float:
        """What this step's asking is expected to cost."""
        return self._cost.draft_ms(*self._totals())

    def learn(self, request_ids: Sequence[int], survival: FloatArray) -> None:
        """These rows have drafts at hand, with this survival [num_rows, max_draft], 0 where there is none."""
        lengths = [self._asked.pop(request_id, 0) for request_id in request_ids]
        for request_id, total in zip(request_ids, survival.sum(axis=1).tolist(), strict=True):
            state = self._requests[request_id]
            state.yielded += (total - state.yielded) / MEMORY_ASKS
        self._yield.learn(lengths, survival)

    def end_step(self, plain_shape: StepShape, step_ms: float, draft_ms: float) -> None:
        """A step is over; decide for the next.

        Args:
            plain_shape: the step without its drafts.
            step_ms: its time, drafting included.
            draft_ms: the time that this step's asking took.
        """
        self._learn_misses()
        self._budget.earn(step_ms)
        self._cost.observe_draft(*self._totals(), draft_ms)
        committing = list(self._asking)
        self._asked = {key: length for key, length in self._asking.items() if length and key in self._requests}
        self._asking = {}
        self._step += 1
        if committing:
            self._settle(committing, plain_shape)

    def _learn_misses(self) -> None:
        """Those asked of whom nothing came."""
        if not self._asked:
            return
        for request_id in self._asked:
            state = self._requests[request_id]
            state.yielded -= state.yielded / MEMORY_ASKS
        self._yield.miss(self._asked.values())
        self._asked.clear()

    def _totals(self) -> tuple[int, int, int]:
        """Rows asked, tokens asked for, and the longest draft asked for."""
        lengths = self._asking.values()
        return len(lengths) - list(lengths).count(0), sum(lengths), max(lengths, default=0)

    def _settle(self, committing: Sequence[int], plain_shape: StepShape) -> None:
        """Expect the next step to be like the one that is over, but for its prompts."""
        num_rows = len(committing)
        kv_tokens = plain_shape.kv_tokens * num_rows // max(plain_shape.num_rows, 1)
        shape = StepShape(num_rows, num_rows, kv_tokens)
        plain_ms = self._cost.forward_ms(shape)
        self.is_probing = self._probed is not None or self._probe_length > 0
        self._probed, self._probe_length = None, 0
        if self._cost.draft_ms(num_rows, num_rows * self._max_draft, self._max_draft) <= CHEAP_SHARE * plain_ms:
            self._length, self._least_yield, self._num_rows = self._max_draft, 0.0, 0
            return
        if self._step % SETTLE_EVERY_STEPS == 0 or num_rows != self._num_rows:
            self._length = self._yield.best_length(num_rows, self._cost, shape)
            self._num_rows = num_rows
        self._least_yield = self._cost.draft_ms(1, self._length, 0) * num_rows / plain_ms
        if self._length < self._max_draft and self._step % EVERY_STEPS == 0:
            self._probe(committing)

    def _probe(self, committing: Sequence[int]) -> None:
        """Ask for more than pays, as much as the budget allows: of all rows, or while off by turns of one row."""
        turn = self._step // EVERY_STEPS
        num_rows = len(committing)
        if not self._length and turn % 2:
            if self._budget.spend(self._cost.draft_ms(1, self._max_draft, self._max_draft)):
                self._probed = committing[turn // 2 % num_rows]
            return
        now_ms = self._cost.draft_ms(num_rows if self._length else 0, num_rows * self._length, self._length)
        for length in range(self._max_draft, self._length, -1):
            if self._budget.spend(self._cost.draft_ms(num_rows, num_rows * length, length) - now_ms):
                self._probe_length = length
                return
