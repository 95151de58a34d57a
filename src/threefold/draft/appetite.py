"""How long a draft to ask each request for, before anybody has drafted it.

Knows nothing about tokens. Asking costs time too: a draft model's forward passes, or microseconds a row for looking up
n-grams, and what the host does with drafts. What all requests' drafts were worth lately says whether anybody is asked
at a load, and speaks for a request that nobody knows; what its own were worth, whether one is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from threefold.cost import CostCurve, StepShape
from threefold.draft.asking_price import AskingPrice
from threefold.draft.asking_probe import NO_PROBE, AskingProbes, Probe
from threefold.draft.outlook import Outlook
from threefold.draft.worth import ANY, RequestWorth
from threefold.draft.yields import PRIOR_CHANCE, DraftYield

FloatArray = npt.NDArray[np.float64]

DECIDE_EVERY_STEPS = 8
"""What to ask for is thought over this often, and in each of as many steps where the load is new."""
LOAD_RATIO = 1.5
"""Loads are alike up to this ratio of rows."""
LEFT_OUT = 0.3
"""A request is left out when its drafts were worth less than this share of what it takes to ask for them."""
DRAFTS_EACH = 2.0
"""Drafts to be verified for each that comes true: some do not, and those behind them."""
MOST_PROMPTS = 2
"""Where more than so many tokens a row are fed, asking may take long by the prompts beside it: that is no price."""
BLIND_STEPS = 8
"""Where nobody has looked at rows or asked them for so many steps, nothing is known of what is in sight."""
CLOSING_REQUESTS = 8
"""Where so many went since one came, nobody is waiting to come: by chance that happens once in 256 times."""
WORST_STEPS = 8.0
"""An asking that seems to take longer than so many steps is no measure of any other."""


class _StepAsking:
    """Whom a planned step asks, and for how much more than pays."""

    __slots__ = ("committing", "lengths", "probe")

    def __init__(self, probe: Probe) -> None:
        self.committing: Sequence[int] = ()
        self.lengths: dict[int, int] = {}  # of those that are asked
        self.probe = probe


class Appetite:
    """Settles, step by step, who is asked for drafts and how long they may be.

    Args:
        cost: the step's cost curve; it learns here what asking costs.
        max_draft: longest draft ever asked for, tokens.
        has_rounds: each further token costs a draft model's pass; else what is asked for is looked up at once.
        sight_rows: most rows of a step for which `glimpse` says what is there to ask for; 0 = it never does.
        prior_chance: the guess for each draft before any is seen.
        is_behind: drafts are made behind the step that asks for them, so it is the next one that waits for them.
        verify_ms: what each draft that is verified takes of the host while the device waits.

    Attributes:
        is_probing: the drafts now at hand are more than it paid to ask for.
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
        verify_ms: float = 0.0,
    ) -> None:
        self._cost = cost
        self._price = AskingPrice(cost, has_rounds=has_rounds, is_behind=is_behind, verify_ms=verify_ms)
        self._max_draft = max_draft
        self._sight_rows = sight_rows
        self._yield = DraftYield(max_draft, has_rounds=has_rounds, prior_chance=prior_chance, verify_ms=verify_ms)
        self._probes = AskingProbes(self._price, self._yield, max_draft, has_rounds=has_rounds)
        self._worth = RequestWorth(max_draft)
        self._step = 0
        self._load_rows = 0  # that committed when the load was last a new one
        self._num_load_steps = 0  # steps since that load began
        self._outlook = Outlook(1, np.zeros(max_draft), 0.0, 0.0, 0.0)
        self._least_worth = 0.0
        self._context_tokens = 0.0
        self._token_ms = 0.0  # time that a token takes without drafts
        self._probe = NO_PROBE  # of the next step
        self._probed_ms: float | None = None  # what the step before took to ask one row alone
        self.is_probing = False
        self._planned: deque[_StepAsking] = deque()  # steps that are not over yet, two where they overlap
        self._committing: Sequence[int] = ()  # in the last step that is over
        self._asked: dict[int, int] = {}
        self._num_blind_steps = 0  # since rows were looked at or asked
        self._num_gone = 0  # requests since the last one that came

    def start(self, request_id: int, limit: int) -> None:
        """A request that may be asked for up to limit tokens."""
        self._num_gone = 0
        self._worth.start(request_id, limit, self._first_worth)

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._num_gone += 1
        self._worth.stop(request_id)
        self._asked.pop(request_id, None)

    def begin_step(self) -> None:
        """Those asked from now on are asked by another step; only needed while the one before is not over."""
        self._planned.append(_StepAsking(self._probe))
        self._probe = NO_PROBE

    def ask(self, request_ids: Sequence[int], *, may_draft: bool = True) -> Mapping[int, int]:
        """Lengths to ask for after the step being planned; called once a step, with all rows that commit in it.

        Returns:
            The lengths of those who are asked, by request id; the others cost nothing.
        """
        if not self._planned:
            self.begin_step()
        asking = self._planned[-1]
        asking.committing = request_ids
        num_rows = len(request_ids)
        if not (may_draft and num_rows):
            return asking.lengths
        if self._is_new_load(num_rows):
            self._begin_load(request_ids)
        if self._can_see(num_rows):
            asking.lengths = self._seen_for(request_ids)
        elif asking.probe.length:
            asking.lengths = self._worth.asked_for(request_ids, asking.probe.length, ANY, self._step)
        elif self._outlook.length:
            asking.lengths = self._worth.asked_for(request_ids, self._outlook.length, self._least_worth, self._step)
        probed = asking.probe.request_id
        if probed is not None and probed in request_ids:
            limit = self._worth.limit(probed)
            if limit:
                asking.lengths[probed] = limit
        return asking.lengths

    def _can_see(self, num_rows: int) -> bool:
        """Whether it is known of so many rows what there is to ask for."""
        return num_rows <= self._sight_rows and self._num_blind_steps < BLIND_STEPS

    def _seen_for(self, request_ids: Sequence[int]) -> dict[int, int]:
        """Everybody, if all that is in sight is worth the time: once one is asked, the others cost next to nothing."""
        num_seen = self._worth.num_seen(request_ids, is_shared=self._is_closing)
        if not num_seen:
            return {}
        lengths = self._worth.asked_for(request_ids, self._max_draft, ANY, self._step)
        num_rows = len(request_ids)
        num_drafts = round(num_seen * DRAFTS_EACH)
        longer_ms = self._step_ms(num_rows, num_rows + num_drafts) - self._step_ms(num_rows, num_rows)
        cost_ms = self._price.ms(lengths.values()) + longer_ms + self.verify_ms * num_drafts
        return lengths if num_seen * self._token_ms > cost_ms else {}

    def _step_ms(self, num_rows: int, num_tokens: int) -> float:
        """A step of so many rows, prompts left aside."""
        return self._cost.forward_ms(StepShape(num_tokens, num_rows, int(num_rows * self._context_tokens)))

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """Drafts that would come true if these rows were asked, as far as can be seen without holding anything up."""
        self._num_blind_steps = 0
        self._worth.glimpse(seen)

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
        return self._price.ms(self._planned[-1].lengths.values() if self._planned else ())

    @property
    def verify_ms(self) -> float:
        """What each draft verified takes beside the forward pass."""
        return self._price.verify_ms

    def learn(self, request_ids: Sequence[int], survival: FloatArray) -> None:
        """These rows have drafts at hand, with this survival [num_rows, max_draft], 0 where there is none."""
        lengths = list(map(self._asked.pop, request_ids, repeat(0)))
        totals, worths = self._yield.learn(lengths, survival, self._outlook.floor)
        self._worth.learn(request_ids, worths.tolist())
        if len(request_ids) <= self._sight_rows:
            self._num_blind_steps = 0
            self._worth.glimpse(dict(zip(request_ids, totals.tolist(), strict=True)))

    def judge(self, judged: FloatArray, passed: Mapping[int, int]) -> None:
        """Drafts were verified; so many of them were expected to pass, and so many did, [2, max_draft] by position.

        And of each request so many did.
        """
        self._yield.judge(judged)
        self._worth.verify(passed)

    def end_step(self, plain_shape: StepShape, step_ms: float, draft_ms: float, num_verified: int = 0) -> None:
        """The oldest step is over; decide for the next to be planned.

        Args:
            plain_shape: the step without its drafts.
            step_ms: its time, drafting included.
            draft_ms: the time that this step's asking took.
            num_verified: its drafts.
        """
        self._learn_misses()
        self.earn(step_ms)
        asking = self._planned.popleft() if self._planned else _StepAsking(NO_PROBE)
        lengths = asking.lengths
        if self._probed_ms is not None:
            self._probes.settle(self._probed_ms + draft_ms)
        self._probed_ms = None if asking.probe.request_id is None else draft_ms
        if plain_shape.num_tokens <= MOST_PROMPTS * len(asking.committing):
            self._price.learn(lengths.values(), min(draft_ms, WORST_STEPS * (step_ms - draft_ms)), num_verified)
        if lengths:
            self._asked = self._worth.still_here(lengths)
        if self._pass_over(asking):
            self.decide(plain_shape)

    @property
    def is_quiet(self) -> bool:
        """Whether the oldest step asks nobody, nor did those before it leave anything to learn or to decide."""
        if self._asked or not self._planned or not self._price.is_settled:
            return False
        return not self._planned[0].lengths and self._num_load_steps >= DECIDE_EVERY_STEPS

    def end_quiet_step(self) -> bool:
        """The oldest step is over, and it is quiet. Returns whether to `decide`, once `earn` knows of it."""
        return self._pass_over(self._planned.popleft())

    def earn(self, step_ms: float, num_steps: int = 1) -> None:
        """So many steps took that long each."""
        self._probes.earn(step_ms, num_steps)

    def decide(self, plain_shape: StepShape) -> None:
        """Settle whom to ask in steps like the one that is over, without its drafts; and whether more for once."""
        committing = self._committing
        self._context_tokens = plain_shape.kv_tokens / max(plain_shape.num_rows, 1)
        if not self._is_new_load(len(committing)):
            was_off = not self._outlook.length
            self._settle(committing, round(self._worth.share_above(self._least_worth) * len(committing)))
            if was_off and self._outlook.length:
                self._num_load_steps = 0  # it may have been a lucky look
        outlook, turn = self._outlook, self._step // DECIDE_EVERY_STEPS
        is_of_use = outlook.length or not self._can_see(len(committing))
        if is_of_use and outlook.length < self._max_draft and self._step % DECIDE_EVERY_STEPS == 1:
            self._probe = self._probes.choose(outlook, committing, self._token_ms, turn)

    def _pass_over(self, asking: _StepAsking) -> bool:
        """A step is over. Returns whether it is time to decide."""
        self._step += 1
        if not asking.committing:
            return False
        self._committing = asking.committing
        self.is_probing = asking.probe != NO_PROBE
        self._probe = NO_PROBE
        self._num_load_steps += 1
        self._num_blind_steps += 1
        return self._num_load_steps < DECIDE_EVERY_STEPS or self._step % DECIDE_EVERY_STEPS == 1

    def _learn_misses(self) -> None:
        """Those asked of whom nothing came."""
        if self._asked:
            self._worth.miss(self._asked)
            self._yield.miss(self._asked.values())
            self._asked.clear()

    def _is_new_load(self, num_rows: int) -> bool:
        return not self._load_rows <= LOAD_RATIO * num_rows <= LOAD_RATIO**2 * self._load_rows

    def _begin_load(self, committing: Sequence[int]) -> None:
        """What requests' drafts were worth at another load says little: all begin with what can be expected of any."""
        self._load_rows = len(committing)
        self._num_load_steps = 0
        self._settle(committing, self._load_rows)
        self._worth.renew(self._first_worth)

    def _settle(self, committing: Sequence[int], num_asked: int) -> None:
        """Decide for steps in which about these commit, prompts left aside."""
        num_rows = len(committing)
        shape = StepShape(num_rows, num_rows, int(num_rows * self._context_tokens))
        self._outlook = self._yield.outlook(num_rows, max(num_asked, 1), self._cost, shape)
        if self._is_closing:
            self._outlook = self._outlook.shared(self._worth.evenness)
        self._token_ms = self._cost.forward_ms(shape) / num_rows
        self._least_worth = LEFT_OUT * self._price.row_ms(self._outlook.length) / self._token_ms

    @property
    def _is_closing(self) -> bool:
        """Whether requests go and none comes: then a row that is over sooner makes room for nobody, and what counts is
        what becomes of each row's own speed.
        """
        return self._num_gone >= CLOSING_REQUESTS

    @property
    def _first_worth(self) -> float:
        """What a request that nobody knows begins with: what all are worth, and never so little that it is left out."""
        return max(self._outlook.worth, self._least_worth / LEFT_OUT)
