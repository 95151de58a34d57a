"""Which drafts at hand are verified in a step. They take what nobody else wants: tokens and blocks that are left over.

Knows lengths and odds only; the drafts themselves never leave the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress

from threefold.cache.manager import CacheManager
from threefold.cost import StepShape
from threefold.draft.controller import DraftPolicy, RowDraft
from threefold.schedule.running import Row
from threefold.step import RowColumns, RowPlan, StepPlan


class DraftPlanner:
    """Appends drafts to a plan's rows, as the controller chooses and as far as they fit."""

    def __init__(self, cache: CacheManager, controller: DraftPolicy) -> None:
        self._cache = cache
        self._controller = controller

    def ask(self, columns: RowColumns, rows: Mapping[int, Row], in_flight: StepPlan | None = None) -> RowColumns:
        """Have drafts proposed behind the step, as long as the controller wants them. Returns the step with that in it.

        Args:
            columns: the step.
            rows: the running rows, by request id.
            in_flight: the step before it, where that still runs: its tokens are on their way.
        """
        request_ids, wants_token = columns.request_ids, columns.wants_token
        if not all(wants_token):
            request_ids = list(compress(request_ids, wants_token))
        wanted = self._controller.appetites(request_ids)
        if not wanted:
            return columns
        before = RowColumns() if in_flight is None else in_flight.columns
        on_their_way = set(compress(before.request_ids, before.wants_token))
        next_draft = [0] * len(wants_token)
        for place, (request_id, wants) in enumerate(zip(columns.request_ids, wants_token, strict=True)):
            length = wanted.get(request_id, 0)
            if length and wants:
                num_committed = 2 if request_id in on_their_way else 1
                next_draft[place] = min(length, rows[request_id].useful_draft(num_committed))
        return columns._replace(next_draft=next_draft)

    def plan(self, plans: list[RowPlan], rows: Mapping[int, Row], budget: int, num_spare: int) -> None:
        """The same where rows have drafts at hand, which are verified in the step; a hot loop.

        Args:
            plans: the step without drafts; changed in place.
            rows: the running rows, by request id.
            budget: tokens that the step may still take.
            num_spare: blocks that drafts must leave to others.
        """
        drafts, entries, num_asked = self._at_hand(plans, rows)
        chosen = iter(self._controller.choose(drafts, shape_of(RowColumns.of(plans))._replace(num_drafted=num_asked)))
        new = tuple.__new__  # several times as fast as RowPlan(…)
        for index, row, num_at_hand, next_draft in entries:
            request_id, num_computed, num_new, _, new_blocks, _, _ = plans[index]
            num_drafts = next(chosen) if num_at_hand else 0
            if num_drafts > num_at_hand or num_drafts > budget:
                num_drafts = min(num_at_hand, budget)
            end = num_computed + num_new + num_drafts
            if end > row.num_slots:
                new_blocks += self._grow(row, end, num_spare)
                num_drafts -= max(end - row.num_slots, 0)
            budget -= num_drafts
            columns = request_id, num_computed, num_new + num_drafts, num_drafts, new_blocks, True, next_draft
            plans[index] = new(RowPlan, columns)

    def _at_hand(
        self, plans: list[RowPlan], rows: Mapping[int, Row]
    ) -> tuple[list[RowDraft], list[tuple[int, Row, int, int]], int]:
        """What there is to verify, as far as it is of any use, and what to ask for.

        Returns:
            The drafts; index, row, drafts and length to ask for of each plan with either; and the sum of the lengths.
        """
        wanted = self._appetites(plans)
        drafts: list[RowDraft] = []
        entries: list[tuple[int, Row, int, int]] = []
        num_asked = 0
        new = tuple.__new__
        for index, (request_id, num_computed, num_new, _, _, wants_token, _) in enumerate(plans):
            if not wants_token:
                continue
            row = rows[request_id]
            request, survival, length = row.request, row.survival, wanted.get(request_id, 0)
            num_at_hand = len(survival)
            room = request.max_total_tokens - len(request.token_ids) - 1  # as Row.useful_draft has it
            if length >= room or length > row.max_draft or num_at_hand > room or num_at_hand > row.max_draft:
                length = min(length, row.useful_draft(1))
                survival = survival[: row.useful_draft(0)]
                num_at_hand = len(survival)
            if num_at_hand:
                drafts.append(new(RowDraft, (request_id, survival, row.drafter, num_computed + num_new)))
            elif not length:
                continue
            entries.append((index, row, num_at_hand, length))
            num_asked += length
        return drafts, entries, num_asked

    def _appetites(self, plans: list[RowPlan]) -> Mapping[int, int]:
        return self._controller.appetites([plan[0] for plan in plans if plan[5]])

    def _grow(self, row: Row, num_tokens: int, num_spare: int) -> tuple[int, ...]:
        """Slots for drafts, if there are blocks to spare for them."""
        more = self._cache.allocate(row.request, num_tokens, num_spare) or ()
        row.num_slots += len(more) * self._cache.block_size
        return more


def shape_of(rows: RowColumns) -> StepShape:
    """What the time of a step with these rows depends on."""
    num_tokens = sum(rows.num_new)
    return StepShape(num_tokens, len(rows.num_new), sum(rows.num_computed) + num_tokens, sum(rows.next_draft))
