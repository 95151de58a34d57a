"""How long a draft to ask each request for, before anybody has drafted it.

Knows nothing about tokens. Asking costs time too: a draft model's forward passes, or microseconds a row for looking up
n-grams. While that is next to nothing every request is asked for all it may have; otherwise what asking yields decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

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
WORST_STEPS = 8.0
"""An asking that seems to take longer than so many steps is no measure of any other."""
MEMORY_ASKS = 16.0
"""Askings over which a request's yield is averaged."""


class _RequestState:
    __slots__ = ("limit", "seen", "yielded")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.seen = 0.0
        """Drafts that would come true of those last seen or had, where somebody looks before asking."""
        self.yielded = float(limit)
        """Accepted drafts that an asking can be expected to bring, lately; hopeful at first."""


class _StepAsking:
    """Whom a planned step asks, and for how much more than pays."""

    __slots__ = ("committing", "lengths", "probe_length", "probed")

    def __init__(self, probed: int | None, probe_length: int) -> None:
        self.committing: Sequence[int] = ()
        self.lengths: dict[int, int] = {}  # of those that are asked
        self.probed = probed
        self.probe_length = probe_length

    @property
    def is_probing(self) -> bool:
        return self.probed is not None or self.probe_length > 0


class Appetite:
    """Settles, step by step, who is asked for drafts and how long they may be.

    Args:
        cost: the step's cost curve; it learns here what asking costs.
        max_draft: longest draft ever asked for, tokens.
        has_rounds: each further token costs a draft model's pass; else what is asked for is looked up at once.
        sight_rows: most rows of a step for which `glimpse` says what is there to ask for; 0 = it never does.

    Attributes:
        is_probing: the drafts now at hand are more than it paid to ask for.
    """

    def __init__(self, cost: CostCurve, max_draft: int, *, has_rounds: bool = True, sight_rows: int = 0) -> None:
        self._cost = cost
        self._max_draft = max_draft
        self._has_rounds = has_rounds
        self._sight_rows = sight_rows
        self._budget = ProbeBudget()
        self._yield = DraftYield(max_draft, has_rounds=has_rounds)
        self._requests: dict[int, _RequestState] = {}
        self._step = 0
        self._length = 1  # until it is known what asking costs
        self._num_rows = 0
        self._least_yield = 0.0
        self._token_ms = 0.0  # time that a token takes without drafts
        self._probed: int | None = None
        self._probe_length = 0
        self.is_probing = False
        self._planned: deque[_StepAsking] = deque()  # steps that are not over yet, two where they overlap
        self._asked: dict[int, int] = {}
        self._was_asking = False
        self._single: tuple[Collection[int], float] = (), 0.0  # an asking whose price is not complete

    def start(self, request_id: int, limit: int) -> None:
        """A request that may be asked for up to limit tokens."""
        self._requests[request_id] = _RequestState(min(limit, self._max_draft))

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._requests.pop(request_id, None)
        self._asked.pop(request_id, None)

    def begin_step(self) -> None:
        """Those asked from now on are asked by another step; only needed while the one before is not over."""
        self._planned.append(_StepAsking(self._probed, self._probe_length))
        self._probed, self._probe_length = None, 0

    def ask(self, request_ids: Sequence[int], *, may_draft: bool = True) -> Mapping[int, int]:
        """Lengths to ask for after the step being planned; called once a step, with all rows that commit in it.

        Returns:
            The lengths of those who are asked, by request id; the others cost nothing.
        """
        if not self._planned:
            self.begin_step()
        asking = self._planned[-1]
        asking.committing = request_ids
        length = asking.probe_length or self._length
        if may_draft and len(request_ids) <= self._sight_rows:
            asking.lengths = self._seen_for(request_ids)
        elif may_draft and length:
            asking.lengths = self._asked_for(request_ids, length)
        if may_draft and asking.probed is not None and asking.probed in request_ids:
            asking.lengths[asking.probed] = min(self._max_draft, self._requests[asking.probed].limit)
        return asking.lengths

    def _asked_for(self, request_ids: Sequence[int], length: int) -> dict[int, int]:
        """Everybody, but for those whose drafts come to nothing and whose turn it is not."""
        requests, step, least_yield = self._requests, self._step, self._least_yield
        lengths = {}
        for request_id in request_ids:
            state = requests[request_id]
            if state.limit and (state.yielded >= least_yield or not (step + request_id) % ASK_AGAIN_STEPS):
                lengths[request_id] = min(length, state.limit)
        return lengths

    def _seen_for(self, request_ids: Sequence[int]) -> dict[int, int]:
        """Everybody, if all that is in sight is worth the time: once one is asked, the others cost next to nothing."""
        requests, lengths, seen = self._requests, {}, 0.0
        for request_id in request_ids:
            state = requests[request_id]
            if state.limit:
                lengths[request_id] = min(self._max_draft, state.limit)
                seen += state.seen
        return lengths if seen * self._token_ms > self._draft_ms(lengths.values()) else {}

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """Drafts that would come true if these rows were asked, as far as can be seen without holding anything up."""
        for request_id, tokens in seen.items():
            state = self._requests.get(request_id)
            if state is not None:
                state.seen = tokens

    @property
    def num_planned(self) -> int:
        """Rows that commit a token in the step being planned."""
        return len(self._planned[-1].committing) if self._planned else 0

    @property
    def num_ending(self) -> int:
        """Rows that commit a token in the oldest step that is not over."""
        return len(self._planned[0].committing) if self._planned else 0

    @property
    def is_ending_asking(self) -> bool:
        """Whether that step asks anybody."""
        return bool(self._planned) and bool(self._planned[0].lengths)

    def expected_ms(self) -> float:
        """What the asking of the step being planned is expected to cost."""
        return self._draft_ms(self._planned[-1].lengths.values() if self._planned else ())

    def learn(self, request_ids: Sequence[int], survival: FloatArray) -> None:
        """These rows have drafts at hand, with this survival [num_rows, max_draft], 0 where there is none."""
        lengths = [self._asked.pop(request_id, 0) for request_id in request_ids]
        for request_id, total in zip(request_ids, survival.sum(axis=1).tolist(), strict=True):
            state = self._requests[request_id]
            state.yielded += (total - state.yielded) / MEMORY_ASKS
            state.seen = total
        self._yield.learn(lengths, survival)

    def end_step(self, plain_shape: StepShape, step_ms: float, draft_ms: float) -> None:
        """The oldest step is over; decide for the next to be planned.

        Args:
            plain_shape: the step without its drafts.
            step_ms: its time, drafting included.
            draft_ms: the time that this step's asking took.
        """
        self._learn_misses()
        self._budget.earn(step_ms)
        asking = self._planned.popleft() if self._planned else _StepAsking(None, 0)
        lengths = asking.lengths
        self._learn_cost(lengths.values(), min(draft_ms, WORST_STEPS * (step_ms - draft_ms)))
        self._asked = {key: length for key, length in lengths.items() if key in self._requests}
        self._step += 1
        if asking.committing:
            self.is_probing = asking.is_probing
            self._settle(asking.committing, plain_shape)

    def _learn_cost(self, lengths: Collection[int], draft_ms: float) -> None:
        """Step after step each one's price holds what it waited for the one before; a single asking pays that later."""
        last_lengths, last_ms = self._single
        self._single = (), 0.0
        if lengths and self._was_asking:
            self._cost.observe_draft(*self._totals(lengths), draft_ms)
        elif lengths:
            self._single = lengths, draft_ms
        elif last_lengths:
            self._cost.observe_draft(*self._totals(last_lengths), last_ms + draft_ms)
        self._was_asking = bool(lengths)

    def _learn_misses(self) -> None:
        """Those asked of whom nothing came."""
        if not self._asked:
            return
        for request_id in self._asked:
            state = self._requests[request_id]
            state.yielded -= state.yielded / MEMORY_ASKS
            state.seen = 0.0
        self._yield.miss(self._asked.values())
        self._asked.clear()

    def _settle(self, committing: Sequence[int], plain_shape: StepShape) -> None:
        """Expect the next step to be like the one that is over, but for its prompts."""
        num_rows = len(committing)
        kv_tokens = plain_shape.kv_tokens * num_rows // max(plain_shape.num_rows, 1)
        shape = StepShape(num_rows, num_rows, kv_tokens)
        plain_ms = self._cost.forward_ms(shape)
        self._token_ms = plain_ms / num_rows
        self._probed, self._probe_length = None, 0
        if self._draft_ms([self._max_draft] * num_rows) <= CHEAP_SHARE * plain_ms:
            self._length, self._least_yield, self._num_rows = self._max_draft, 0.0, 0
            return
        if self._step % SETTLE_EVERY_STEPS == 0 or num_rows != self._num_rows:
            self._length = self._yield.best_length(num_rows, self._cost, shape)
            self._num_rows = num_rows
        self._least_yield = self._cost.draft_ms(1, self._length * self._has_rounds, 0) * num_rows / plain_ms
        if self._length < self._max_draft and self._step % EVERY_STEPS == 0:
            self._probe(committing)

    def _probe(self, committing: Sequence[int]) -> None:
        """Ask for more than pays, as much as the budget allows: of all rows, or while off by turns of one row."""
        turn = self._step // EVERY_STEPS
        num_rows = len(committing)
        if not self._length and turn % 2:
            if self._budget.spend(self._draft_ms([self._max_draft])):
                self._probed = committing[turn // 2 % num_rows]
            return
        now_ms = self._draft_ms([self._length] * num_rows if self._length else ())
        for length in range(self._max_draft, self._length, -1):
            if self._budget.spend(self._draft_ms([length] * num_rows) - now_ms):
                self._probe_length = length
                return

    def _draft_ms(self, lengths: Collection[int]) -> float:
        """What it costs to ask rows for drafts of these lengths."""
        return self._cost.draft_ms(*self._totals(lengths))

    def _totals(self, lengths: Collection[int]) -> tuple[int, int, int]:
        """Rows asked, tokens asked for and rounds, as far as they cost anything."""
        most = max(lengths, default=0)
        return (len(lengths), sum(lengths), most) if self._has_rounds else (len(lengths), 0, min(most, 1))
