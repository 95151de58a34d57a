"""What drafts really cost a step: all that passes beside its forward pass, less what passes there without drafts.

Proposing is the part that can be timed by itself. Deciding, planning, verifying on the host and building longer results
cost as well, and where steps overlap a step that asks for drafts keeps the next one waiting, whether or not that one
has any. All of it lies between the end of one step and the end of the next. Knows nothing about what is done with the
price.
"""

from __future__ import annotations

from typing import NamedTuple

from threefold.step import StepPlan, StepResult

MEMORY_STEPS = 20.0
"""Steps over which what the host takes is averaged …"""
EASE_STEPS = 4.0
"""… and over so few where steps overlap and it takes less than was known: as a rule nothing is left to see of it."""

MOST_TIMES = 2.0
"""Where nobody knows what setting rows up takes, drafts are charged all of a step up to so many times what they cost
lately: as a rule it is hidden, until drafts hold the device up."""


class _Kind(NamedTuple):
    """What a step's time beside its forward pass may come from."""

    is_asking: bool
    has_drafts: bool
    num_set_up: int
    """Rows that are set up, at least 1 where prompts go on."""

    @classmethod
    def of(cls, plan: StepPlan) -> _Kind:
        is_asking = plan.num_asked > 0
        num_set_up = max(len(plan.new_rows), int(plan.feeds_prompts))
        return cls(is_asking, is_asking or plan.num_drafts > 0, num_set_up)


class DraftPrice:
    """Puts the price of drafts into a step's result.

    Args:
        is_overlapped: what the host does without drafts is hidden behind the device's work, as far as it fits there.
    """

    def __init__(self, is_overlapped: bool) -> None:
        self._is_overlapped = is_overlapped
        self._memory_below = EASE_STEPS if is_overlapped else MEMORY_STEPS
        self._ended_s: float | None = None
        self._before = _Kind(False, False, 0)
        self._plain_ms: dict[int, float] = {}  # the host's part without drafts, a token or row, by the batch's size
        self._setup_ms: dict[int, float] = {}  # what a row that is set up adds to it
        self._draft_ms: dict[int, float] = {}  # what drafts cost a step lately

    def rest(self) -> None:
        """Nothing runs: the time until the next step is nobody's."""
        self._ended_s = None

    def put(self, plan: StepPlan, result: StepResult, ended_s: float) -> StepResult:
        """The result with draft_ms as it should be.

        Args:
            plan: the step's.
            result: what it came to; its forward_ms is trusted.
            ended_s: the clock when it was collected.
        """
        before_s, self._ended_s = self._ended_s, ended_s
        before, self._before = self._before, _Kind.of(plan)
        has_price = self._before.has_drafts or (self._is_overlapped and before.has_drafts)
        if not has_price:
            result = _priced(result, 0.0)
        if before_s is None or not any(row.token_ids for row in result.rows):
            return result
        size = len(plan.rows).bit_length()
        # Where steps overlap, more tokens a row cost the host next to nothing until the next step is launched.
        num_shares = len(plan.rows) if self._is_overlapped else sum([len(row.token_ids) for row in result.rows])
        beside_ms = max((ended_s - before_s) * 1000 - result.forward_ms, 0.0)
        num_set_up = max(before.num_set_up, self._before.num_set_up)
        if not has_price:
            self._learn_plain(size, num_shares, beside_ms, num_set_up)
            return result
        allowed_ms = self._allowed_ms(size, num_shares, num_set_up)
        if allowed_ms is None:
            known_ms = self._draft_ms.get(size, 0.0)
            return _priced(result, max(result.draft_ms, min(beside_ms, MOST_TIMES * known_ms)))
        draft_ms = max(beside_ms - allowed_ms, 0.0)
        _average(self._draft_ms, size, draft_ms)
        return _priced(result, draft_ms)

    def _learn_plain(self, size: int, num_shares: int, beside_ms: float, num_set_up: int) -> None:
        if not num_set_up:
            if self._is_overlapped:  # as a rule it is all hidden: one slow step is no sign that it is not
                self._plain_ms.setdefault(size, 0.0)
            _average(self._plain_ms, size, beside_ms / num_shares, self._memory_below)
            return
        allowed_ms = self._allowed_ms(size, num_shares, 0)
        if allowed_ms is not None:
            # By the row: a first wave sets up a hundred in a step, and what that took must not excuse a step with one.
            setup_ms = max(beside_ms - allowed_ms, 0.0) / num_set_up
            _average(self._setup_ms, size, setup_ms, self._memory_below)

    def _allowed_ms(self, size: int, num_shares: int, num_set_up: int) -> float | None:
        """What such a step would have cost the host without drafts; None = nobody knows."""
        setup_ms = self._setup_ms.get(size) if num_set_up else 0.0
        share_ms = self._plain_ms.get(size, 0.0 if self._is_overlapped else None)
        return None if setup_ms is None or share_ms is None else share_ms * num_shares + setup_ms * num_set_up


def _priced(result: StepResult, draft_ms: float) -> StepResult:
    """With every step, so by hand: dataclasses.replace takes as long as all else here."""
    rows, forward_ms, idle_ms = result.rows, result.forward_ms, result.idle_ms
    return StepResult(rows, forward_ms, draft_ms, idle_ms, result.num_draft_faults, result.glimpses)


def _average(by_size: dict[int, float], size: int, ms: float, memory_below: float = MEMORY_STEPS) -> None:
    """Take a reading into the average of its size; one below it counts as if only so many had gone before."""
    known_ms = by_size.get(size, ms)
    by_size[size] = known_ms + (ms - known_ms) / (memory_below if ms < known_ms else MEMORY_STEPS)
