"""Plans a step behind one that still runs, as if every row in flight that wants a token had got just one.

That holds while there are no drafts and nobody's next draw depends on the token on its way. What may turn out
otherwise is the end: a row that a stop token or a fault has ended runs once more for nothing. A row that ends by length
is known, and left out.
"""

from __future__ import annotations

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy
from threefold.schedule.running import RunningBatch
from threefold.step import RowPlan, StepPlan


class AheadPlanner:
    """Plans the rows of a step in flight once more."""

    def __init__(self, cache: CacheManager, controller: DraftPolicy, running: RunningBatch) -> None:
        self._cache = cache
        self._controller = controller
        self._running = running

    def can_plan(self, in_flight: StepPlan) -> bool:
        """False when the step in flight must be over first: for its drafts, its logprobs, or for want of blocks.

        A step in flight reads blocks, so nobody can be preempted; each row needs one block more at most, since the
        blocks of a prompt are held from the start.
        """
        if self._running.num_bound:
            return False
        columns = in_flight.columns
        if any(columns.max_draft) or any(columns.next_draft):
            return False
        num_free = self._cache.num_free_blocks
        return num_free >= len(in_flight.rows) or num_free >= self._num_growing(in_flight)

    def plan_rows(
        self, in_flight: StepPlan, budget: int, max_chunk: int, num_prompt_tokens: int
    ) -> tuple[list[RowPlan], int, int, bool]:
        """Plan every row that goes on; the hot loop.

        Returns:
            The rows, in the order of the step in flight, the tokens left of the budget and of the prompts', and whether
            all rows go on with the token that they choose.
        """
        by_id, allocate = self._running.by_id, self._cache.allocate
        self._controller.begin_ahead()
        plans: list[RowPlan] = []
        num_behind = len(in_flight.rows)
        goes_on = True
        new = tuple.__new__  # several times as fast as RowPlan(…)
        for request_id, num_before, num_fed, _, _, wanted_token, _ in in_flight.rows:
            num_behind -= 1
            row = by_id.get(request_id)
            if row is None:
                goes_on = False
                continue
            request = row.request
            num_computed = num_before + num_fed
            num_known = len(request.token_ids)
            num_new = 1
            if wanted_token:
                num_known += 1  # on its way
                if num_known >= request.max_total_tokens:
                    goes_on = False
                    continue
            else:
                goes_on = False
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
        return plans, budget, num_prompt_tokens, goes_on

    def _num_growing(self, in_flight: StepPlan) -> int:
        """Rows that need a block more than they have, at most."""
        by_id = self._running.by_id
        return sum(
            planned.num_computed + planned.num_new >= by_id[planned.request_id].num_slots
            for planned in in_flight.rows
            if planned.request_id in by_id
        )
