"""Plans a step behind one that still runs, as if every row in flight that wants a token had got just one.

That holds while there are no drafts and nobody's next draw depends on the token on its way. What may turn out
otherwise is the end: a row that a stop token or a fault has ended runs once more for nothing. A row that ends by length
is known, and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy
from threefold.schedule.course import Course
from threefold.schedule.running import RunningBatch
from threefold.step import RowColumns, RowPlan, StepPlan


class Planned(NamedTuple):
    """The rows of a step in flight, planned once more."""

    columns: RowColumns
    """In the order of the step in flight."""
    edges: list[int] | None
    """As a plan has them."""
    goes_on: bool
    """Whether all rows are fed the token that they choose."""
    budget: int
    """Tokens left of the step's …"""
    num_prompt_tokens: int
    """… and of its prompts'."""


class AheadPlanner:
    """Plans the rows of a step in flight once more."""

    def __init__(self, cache: CacheManager, controller: DraftPolicy, running: RunningBatch) -> None:
        self._cache = cache
        self._controller = controller
        self._running = running
        self._course = Course()
        self._num_left = 0  # rows that had left the batch when the course was last looked through
        self._rows: Sequence[RowPlan] | None = None  # of the plan that the course stands behind

    def can_plan(self, in_flight: StepPlan) -> bool:
        """False when the step in flight must be over first: for its drafts, its logprobs, or for want of blocks.

        A step in flight reads blocks, so nobody can be preempted; each row needs one block more at most, since the
        blocks of a prompt are held from the start.
        """
        if self._running.num_bound:
            return False
        if in_flight.num_drafts or in_flight.num_asked:
            return False
        num_free = self._cache.num_free_blocks
        return num_free >= len(in_flight.rows) or num_free >= self._num_growing(in_flight)

    def plan_rows(self, in_flight: StepPlan, budget: int, max_chunk: int, num_prompt_tokens: int) -> Planned:
        """Plan every row that goes on."""
        self._controller.begin_ahead()
        columns = in_flight.columns
        if not all(columns.wants_token):
            return self._plan_one_by_one(in_flight, budget, max_chunk, num_prompt_tokens)
        course = self._catch_up(in_flight)
        has_ended = course.end()
        goes_on = not has_ended and len(course) == len(in_flight.rows)
        columns, edges = course.advance(self._cache)
        return Planned(columns, edges, goes_on, budget - len(course), num_prompt_tokens)

    def follow(self, plan: StepPlan) -> None:
        """The rows planned last have become a step, and others may have joined them."""
        joining = plan.rows[len(self._course) :]
        self._rows = None
        if all(planned.wants_token for planned in joining):
            self._course.join(self._course_of(joining))
            self._rows = plan.rows

    def _catch_up(self, in_flight: StepPlan) -> Course:
        """The rows in flight that are still here."""
        by_id, num_left = self._running.by_id, self._running.num_left
        if in_flight.rows is not self._rows:
            self._course = self._course_of(in_flight.rows)
        elif num_left != self._num_left:
            self._course.leave([row.request.request_id in by_id for row in self._course.rows])
        self._num_left = num_left
        return self._course

    def _course_of(self, plans: Sequence[RowPlan]) -> Course:
        by_id = self._running.by_id
        here = [planned for planned in plans if planned.request_id in by_id]
        rows = [by_id[planned.request_id] for planned in here]
        return Course(rows, [planned.num_computed + planned.num_new for planned in here])

    def _plan_one_by_one(self, in_flight: StepPlan, budget: int, max_chunk: int, num_prompt_tokens: int) -> Planned:
        """The same where prompts go on."""
        by_id, allocate = self._running.by_id, self._cache.allocate
        self._course = Course()
        plans: list[RowPlan] = []
        num_behind = len(in_flight.rows)
        new = tuple.__new__  # several times as fast as RowPlan(…)
        for request_id, num_before, num_fed, _, _, wanted_token, _ in in_flight.rows:
            num_behind -= 1
            row = by_id.get(request_id)
            if row is None:
                continue
            request = row.request
            num_computed = num_before + num_fed
            num_known = len(request.token_ids)
            num_new = 1
            if wanted_token:
                num_known += 1  # on its way
                if num_known >= request.max_total_tokens:
                    continue
            else:
                num_new = min(num_known - num_computed, max_chunk, budget - num_behind, max(num_prompt_tokens, 1))
                num_prompt_tokens -= num_new
            end = num_computed + num_new
            new_blocks: tuple[int, ...] = ()
            if end > row.num_slots:
                grown = allocate(request, end)
                assert grown is not None, "can_plan counted the blocks"
                new_blocks = grown
                row.num_slots += len(new_blocks) * self._cache.block_size
            budget -= num_new
            plans.append(new(RowPlan, (request_id, num_computed, num_new, 0, new_blocks, end == num_known, 0)))
        return Planned(RowColumns.of(plans), None, False, budget, num_prompt_tokens)

    def _num_growing(self, in_flight: StepPlan) -> int:
        """Rows that need a block more than they have, at most."""
        by_id = self._running.by_id
        return sum(
            planned.num_computed + planned.num_new >= by_id[planned.request_id].num_slots
            for planned in in_flight.rows
            if planned.request_id in by_id
        )
