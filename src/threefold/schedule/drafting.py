"""Which drafts at hand are verified in a step. They take what nobody else wants: tokens and blocks that are left over.

Knows lengths and odds only; the drafts themselves never leave the worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from threefold.cache.manager import CacheManager
from threefold.cost import StepShape
from threefold.draft.controller import DraftPolicy, RowDraft
from threefold.schedule.running import Row
from threefold.step import RowPlan, StepPlan


class DraftPlanner:
    """Appends drafts to a plan's rows, as the controller chooses and as far as they fit."""

    def __init__(self, cache: CacheManager, controller: DraftPolicy) -> None:
        self._cache = cache
        self._controller = controller

    def ask(self, plans: list[RowPlan], rows: Mapping[int, Row], in_flight: StepPlan | None = None) -> None:
        """Have drafts proposed behind the step, as long as the controller wants them.

        Args:
            plans: the step; changed in place.
            rows: the running rows, by request id.
            in_flight: the step before it, where that still runs: its tokens are on their way.
        """
        wanted = self._controller.appetites([plan[0] for plan in plans if plan[5]])
        if not wanted:
            return
        before = () if in_flight is None else in_flight.rows
        on_their_way = {row.request_id for row in before if row.wants_token}
        for index, (request_id, num_computed, num_new, max_draft, new_blocks, wants_token, _) in enumerate(plans):
            length = wanted.get(request_id, 0)
            if length and wants_token:
                num_committed = 2 if request_id in on_their_way else 1
                next_draft = min(length, rows[request_id].useful_draft(num_committed))
                plans[index] = RowPlan(request_id, num_computed, num_new, max_draft, new_blocks, True, next_draft)

    def add_drafts(self, plans: list[RowPlan], drafting: list[tuple[int, Row]], budget: int, num_spare: int) -> None:
        """Widen the plans of rows with drafts at hand.

        Args:
            plans: the step without drafts; changed in place.
            drafting: (index into plans, row) of rows with drafts at hand, all known tokens of which are fed.
            budget: tokens that the step may still take.
            num_spare: blocks that drafts must leave to others.
        """
        candidates: list[RowDraft] = []
        for index, row in drafting:
            plan, survival = plans[index], row.survival
            useful = row.useful_draft(num_committed=0)
            if useful < len(survival):
                survival = survival[:useful]
            candidates.append(RowDraft(plan[0], survival, row.drafter, plan[1] + plan[2]))
        chosen = self._controller.choose(candidates, shape_of(plans))
        for (index, row), (_, survival, _, _), wanted in zip(drafting, candidates, chosen, strict=True):
            num_drafts = min(wanted, len(survival), budget)
            if num_drafts > 0:
                plans[index] = plan = self._widen(plans[index], row, num_drafts, num_spare)
                budget -= plan[3]

    def _widen(self, plan: RowPlan, row: Row, num_drafts: int, num_spare: int) -> RowPlan:
        """Feed up to num_drafts drafts behind the row's known tokens; fewer when there are no blocks for them."""
        request_id, num_computed, num_new, _, new_blocks, wants_token, next_draft = plan
        known = num_computed + num_new
        if known + num_drafts > row.num_slots:
            more = self._cache.allocate(row.request, known + num_drafts, num_spare) or ()
            new_blocks += more
            row.num_slots += len(more) * self._cache.block_size
            num_drafts = min(num_drafts, row.num_slots - known)
        return RowPlan(request_id, num_computed, num_new + num_drafts, num_drafts, new_blocks, wants_token, next_draft)


def shape_of(plans: list[RowPlan]) -> StepShape:
    """What the time of a step with these rows depends on."""
    if not plans:
        return StepShape(0, 0, 0)
    _, num_computed, num_new, _, _, _, next_draft = zip(*plans, strict=True)  # a loop takes half as long again
    num_tokens = sum(num_new)
    return StepShape(num_tokens, len(plans), sum(num_computed) + num_tokens, sum(next_draft))
