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
from threefold.step import RowColumns, StepPlan


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
        wanted = self._appetites(columns)
        if not wanted:
            return columns
        before = RowColumns() if in_flight is None else in_flight.columns
        on_their_way = set(compress(before.request_ids, before.wants_token))
        next_draft = [0] * len(columns.request_ids)
        for place, (request_id, wants) in enumerate(zip(columns.request_ids, columns.wants_token, strict=True)):
            length = wanted.get(request_id, 0)
            if length and wants:
                num_committed = 2 if request_id in on_their_way else 1
                next_draft[place] = min(length, rows[request_id].useful_draft(num_committed))
        return columns._replace(next_draft=next_draft)

    def plan(self, columns: RowColumns, rows: Mapping[int, Row], budget: int, num_spare: int) -> RowColumns:
        """The same where rows have drafts at hand, which are verified in the step; a hot loop.

        Args:
            columns: the step without drafts.
            rows: the running rows, by request id.
            budget: tokens that the step may still take.
            num_spare: blocks that drafts must leave to others.
        """
        drafts, entries, num_asked = self._at_hand(columns, rows)
        chosen = iter(self._controller.choose(drafts, shape_of(columns)._replace(num_drafted=num_asked)))
        num_computed, num_new, new_blocks = columns.num_computed, list(columns.num_new), list(columns.new_blocks)
        max_draft, next_draft = [0] * len(num_new), [0] * len(num_new)
        for place, row, num_at_hand, next_draft[place] in entries:
            num_drafts = next(chosen) if num_at_hand else 0
            if num_drafts > num_at_hand or num_drafts > budget:
                num_drafts = min(num_at_hand, budget)
            if not num_drafts:
                continue
            end = num_computed[place] + num_new[place] + num_drafts
            if end > row.num_slots:
                new_blocks[place] += self._grow(row, end, num_spare)
                num_drafts -= max(end - row.num_slots, 0)
            budget -= num_drafts
            num_new[place] += num_drafts
            max_draft[place] = num_drafts
        return columns._replace(num_new=num_new, max_draft=max_draft, new_blocks=new_blocks, next_draft=next_draft)

    def _at_hand(
        self, columns: RowColumns, rows: Mapping[int, Row]
    ) -> tuple[list[RowDraft], list[tuple[int, Row, int, int]], int]:
        """What there is to verify, as far as it is of any use, and what to ask for.

        Returns:
            The drafts; place, row, drafts and length to ask for of each plan with either; and the sum of the lengths.
        """
        wanted = self._appetites(columns)
        drafts: list[RowDraft] = []
        entries: list[tuple[int, Row, int, int]] = []
        num_asked = 0
        new = tuple.__new__  # several times as fast as RowDraft(…)
        each = zip(columns.request_ids, columns.num_computed, columns.num_new, columns.wants_token, strict=True)
        for place, (request_id, num_computed, num_new, wants_token) in enumerate(each):
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
            entries.append((place, row, num_at_hand, length))
            num_asked += length
        return drafts, entries, num_asked

    def _appetites(self, columns: RowColumns) -> Mapping[int, int]:
        request_ids, wants_token = columns.request_ids, columns.wants_token
        if not all(wants_token):
            request_ids = list(compress(request_ids, wants_token))
        return self._controller.appetites(request_ids)

    def _grow(self, row: Row, num_tokens: int, num_spare: int) -> tuple[int, ...]:
        """Slots for drafts, if there are blocks to spare for them."""
        more = self._cache.allocate(row.request, num_tokens, num_spare) or ()
        row.num_slots += len(more) * self._cache.block_size
        return more


def shape_of(rows: RowColumns) -> StepShape:
    """What the time of a step with these rows depends on."""
    num_tokens = sum(rows.num_new)
    return StepShape(num_tokens, len(rows.num_new), sum(rows.num_computed) + num_tokens, sum(rows.next_draft))
