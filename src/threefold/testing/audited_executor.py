"""A wrapper around any executor that checks every plan and what the KV cache would hold after it.

It keeps, slot by slot, which prefix the KV in it was computed for. A row that is to read a slot with anything else in
it has been given a wrong block: freed too early, found under a wrong hash, shared with a writer, or filled by a draft
that was rejected. Steps may overlap: what a step in flight writes is known by its row and position.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from threefold.step import Executor, NewRow, RowPlan, RowResult, StepPlan, StepResult

_REJECTED = -1  # in a slot: KV of a draft that did not pass


class _InFlight(NamedTuple):
    """In a slot: KV that a step in flight writes."""

    row: _AuditedRow
    position: int


class _AuditedRow:
    def __init__(self, row: NewRow) -> None:
        self.cache_salt = row.cache_salt
        self.block_ids: list[int] = []
        self.num_computed: int | None = None  # unknown until the first plan: some may come from the prefix cache
        self.max_draft = 0
        self.num_in_flight = 0  # tokens on their way
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
        self._kv: dict[int, int | _InFlight] = {}  # slot -> fingerprint of the prefix it was computed for
        self._launched: deque[tuple[StepPlan, list[_AuditedRow]]] = deque()
        self._lent: dict[int, list[int]] = {}  # by request id

    def run(self, plan: StepPlan) -> StepResult:
        """Launch and collect."""
        self.launch(plan)
        return self.collect()

    def launch(self, plan: StepPlan) -> None:
        """Check the plan, start it, note where it writes."""
        assert len(self._launched) < 2, "more than two steps at once"
        self._set_up(plan)
        assert plan.rows, "a plan without rows"
        assert plan.num_tokens <= self._max_num_batched_tokens, "over the budget"
        assert len({row.request_id for row in plan.rows}) == len(plan.rows), "a row twice"
        for row_plan in plan.rows:
            self._check(self._rows[row_plan.request_id], row_plan)
        written = [slot for row_plan in plan.rows for slot in self._slots_written(row_plan)]
        assert len(set(written)) == len(written), "two rows write to one slot"
        self._executor.launch(plan)
        rows = [self._rows[row_plan.request_id] for row_plan in plan.rows]
        self._launched.append((plan, rows))
        for row, row_plan in zip(rows, plan.rows, strict=True):
            row.num_computed = row_plan.num_computed + row_plan.num_new - row_plan.max_draft
            row.max_draft = 0
            row.num_in_flight += row_plan.wants_token
            for position in self._positions(row_plan):
                self._kv[self._slot(row, position)] = _InFlight(row, position)

    def collect(self) -> StepResult:
        """Note what the oldest step wrote."""
        result = self._executor.collect()
        plan, rows = self._launched.popleft()
        self._draft(plan)
        for row, row_plan, row_result in zip(rows, plan.rows, result.rows, strict=True):
            self._note(row, row_plan, row_result)
        return result

    def close(self) -> None:
        """Close the executor behind."""
        self._executor.close()

    def _set_up(self, plan: StepPlan) -> None:
        for request_id in plan.dropped:
            del self._rows[request_id]
            self._lent.pop(request_id, None)
        for request_id in plan.recalled:
            assert request_id in plan.dropped or request_id in self._lent, "a recall of nothing"
            self._lent.pop(request_id, None)
        for new_row in plan.new_rows:
            assert new_row.request_id not in self._rows, "a new row that is there already"
            self._rows[new_row.request_id] = _AuditedRow(new_row)
        for request_id, block_ids in plan.lent.items():
            assert request_id in self._rows, "a loan to nobody"
            self._lent.setdefault(request_id, []).extend(block_ids)
        lent = [block_id for block_ids in self._lent.values() for block_id in block_ids]
        assert len(set(lent)) == len(lent), "a block lent twice"
        held = {block_id for row in self._rows.values() for block_id in row.block_ids}
        assert held.isdisjoint(lent), "a block lent while it is held"

    def _draft(self, plan: StepPlan) -> None:
        """A drafter with KV of its own may write to all that was lent to those whom it was asked to draft for."""
        for row_plan in plan.rows:
            for block_id in self._lent.get(row_plan.request_id, ()) if row_plan.next_draft else ():
                first = block_id * self._block_size
                self._kv.update(dict.fromkeys(range(first, first + self._block_size), _REJECTED))

    def _check(self, row: _AuditedRow, plan: RowPlan) -> None:
        row.block_ids += plan.new_blocks
        assert len(set(row.block_ids)) == len(row.block_ids), "a block twice in one row"
        assert all(0 <= block_id < self._num_blocks for block_id in row.block_ids), "no such block"
        assert row.num_computed in (None, plan.num_computed), "num_computed is not where the row stands"
        num_known = plan.num_new - plan.max_draft
        assert num_known >= 1, "a row without a known token"
        end = plan.num_computed + num_known
        num_tokens = len(row.token_ids) + row.num_in_flight
        assert end <= num_tokens, "more tokens than the row has"
        assert plan.wants_token == (end == num_tokens), "wants_token is wrong"
        assert plan.wants_token or plan.max_draft == plan.next_draft == 0, "drafts in the middle of a prompt"
        assert plan.max_draft <= row.max_draft, "more drafts than were asked for"
        assert plan.num_computed + plan.num_new <= len(row.block_ids) * self._block_size, "no slots for the step"
        for position in range(plan.num_computed):
            held = self._kv.get(self._slot(row, position))
            if held != _InFlight(row, position):
                assert position < len(row.prefixes), f"KV at {position} of {plan} is not on its way"
                assert held == row.prefixes[position], f"wrong KV at {position} of {plan}: {held}"

    def _positions(self, plan: RowPlan) -> range:
        return range(plan.num_computed, plan.num_computed + plan.num_new)

    def _slots_written(self, plan: RowPlan) -> list[int]:
        row = self._rows[plan.request_id]
        return [self._slot(row, position) for position in self._positions(plan)]

    def _note(self, row: _AuditedRow, plan: RowPlan, result: RowResult) -> None:
        row.extend(result.token_ids)
        row.num_in_flight -= plan.wants_token
        num_accepted = len(result.token_ids) - 1 if result.num_drafted else 0
        num_valid = plan.num_computed + plan.num_new - plan.max_draft + num_accepted
        for position in self._positions(plan):
            slot = self._slot(row, position)
            if self._kv[slot] == _InFlight(row, position):  # not written again by a step behind
                is_valid = position < num_valid and position < len(row.prefixes)
                self._kv[slot] = row.prefixes[position] if is_valid else _REJECTED
        if num_accepted:
            row.num_computed = num_valid
        row.max_draft = plan.next_draft

    def _slot(self, row: _AuditedRow, position: int) -> int:
        block, offset = divmod(position, self._block_size)
        return row.block_ids[block] * self._block_size + offset
