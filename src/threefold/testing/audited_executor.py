"""A wrapper around any executor that checks every plan and what the KV cache would hold after it.

It keeps, slot by slot, which prefix the KV in it was computed for. A row that is to read a slot with anything else in
it has been given a wrong block: freed too early, found under a wrong hash, shared with a writer, or filled by a draft
that was rejected.
"""

from __future__ import annotations

from threefold.step import Executor, NewRow, RowPlan, RowResult, StepPlan, StepResult

_REJECTED = -1  # in a slot: KV of a draft that did not pass


class _AuditedRow:
    def __init__(self, row: NewRow) -> None:
        self.cache_salt = row.cache_salt
        self.block_ids: list[int] = []
        self.num_computed: int | None = None  # unknown until the first plan: some may come from the prefix cache
        self.max_draft = 0
        self.token_ids: list[int] = []
        self.prefixes: list[int] = []  # fingerprint of token_ids[: i + 1]
        self.extend(row.token_ids)

    def extend(self, token_ids: list[int] | tuple[int, ...]) -> None:
        for token_id in token_ids:
            parent = self.prefixes[-1] if self.prefixes else hash(self.cache_salt)
            self.prefixes.append(hash((parent, token_id)))
        self.token_ids += token_ids


class AuditedExecutor:
    """Passes plans on to another executor. Raises AssertionError when a plan is not sound."""

    def __init__(self, executor: Executor, num_blocks: int, block_size: int, max_num_batched_tokens: int) -> None:
        self._executor = executor
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_num_batched_tokens = max_num_batched_tokens
        self._rows: dict[int, _AuditedRow] = {}
        self._kv: dict[int, int] = {}  # slot -> fingerprint of the prefix it was computed for

    def run(self, plan: StepPlan) -> StepResult:
        """Check the plan, run it, note what it wrote."""
        self._set_up(plan)
        assert plan.rows, "a plan without rows"
        assert plan.num_tokens <= self._max_num_batched_tokens, "over the budget"
        assert len({row.request_id for row in plan.rows}) == len(plan.rows), "a row twice"
        for row_plan in plan.rows:
            self._check(self._rows[row_plan.request_id], row_plan)
        written = [slot for row_plan in plan.rows for slot in self._slots_written(row_plan)]
        assert len(set(written)) == len(written), "two rows write to one slot"
        result = self._executor.run(plan)
        for row_plan, row_result in zip(plan.rows, result.rows, strict=True):
            self._note(self._rows[row_plan.request_id], row_plan, row_result)
        return result

    def close(self) -> None:
        """Close the executor behind."""
        self._executor.close()

    def _set_up(self, plan: StepPlan) -> None:
        for request_id in plan.dropped:
            del self._rows[request_id]
        for new_row in plan.new_rows:
            assert new_row.request_id not in self._rows, "a new row that is there already"
            self._rows[new_row.request_id] = _AuditedRow(new_row)

    def _check(self, row: _AuditedRow, plan: RowPlan) -> None:
        row.block_ids += plan.new_blocks
        assert len(set(row.block_ids)) == len(row.block_ids), "a block twice in one row"
        assert all(0 <= block_id < self._num_blocks for block_id in row.block_ids), "no such block"
        assert row.num_computed in (None, plan.num_computed), "num_computed is not where the row stands"
        num_known = plan.num_new - plan.max_draft
        assert num_known >= 1, "a row without a known token"
        end = plan.num_computed + num_known
        assert end <= len(row.token_ids), "more tokens than the row has"
        assert plan.wants_token == (end == len(row.token_ids)), "wants_token is wrong"
        assert plan.wants_token or plan.max_draft == plan.next_draft == 0, "drafts in the middle of a prompt"
        assert plan.max_draft <= row.max_draft, "more drafts than were asked for"
        assert plan.num_computed + plan.num_new <= len(row.block_ids) * self._block_size, "no slots for the step"
        for position in range(plan.num_computed):
            held = self._kv.get(self._slot(row, position))
            assert held == row.prefixes[position], f"wrong KV at {position} of {plan}: {held}"

    def _slots_written(self, plan: RowPlan) -> list[int]:
        row = self._rows[plan.request_id]
        return [self._slot(row, plan.num_computed + offset) for offset in range(plan.num_new)]

    def _note(self, row: _AuditedRow, plan: RowPlan, result: RowResult) -> None:
        row.extend(result.token_ids)
        num_accepted = len(result.token_ids) - 1 if result.num_drafted else 0
        num_valid = plan.num_computed + plan.num_new - plan.max_draft + num_accepted
        for position in range(plan.num_computed, plan.num_computed + plan.num_new):
            self._kv[self._slot(row, position)] = row.prefixes[position] if position < num_valid else _REJECTED
        row.num_computed = num_valid
        row.max_draft = plan.next_draft

    def _slot(self, row: _AuditedRow, position: int) -> int:
        block, offset = divmod(position, self._block_size)
        return row.block_ids[block] * self._block_size + offset
