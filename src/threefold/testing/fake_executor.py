"""An executor without tensors: for tests of all that is not tensors, and for timing the control half alone.

Knows plans and a FakeModel. Sampling parameters are ignored but for those that decide when a request stops and what is
reported with its tokens.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence

from threefold.errors import StepMemoryError
from threefold.step import NewRow, RowPlan, RowResult, StepPlan, StepResult, TokenLogprobs, TokenRows
from threefold.testing.fake_model import FakeModel

_NO_TOKENS: frozenset[int] = frozenset()


class FakeDrafts:
    """Drafts that are right with a given probability, token by token.

    Args:
        accuracy: probability that a draft token is what the model will say, given that those before it are.
        is_ragged: propose a random number of tokens, down to none, in place of as many as asked.
        seed: of the dice.
    """

    name = "fake"

    def __init__(self, accuracy: float, *, is_ragged: bool = False, seed: int = 0) -> None:
        self._accuracy = accuracy
        self._is_ragged = is_ragged
        self._dice = random.Random(seed)  # noqa: S311 - dice, not secrets

    def propose(self, model: FakeModel, state: int, max_tokens: int) -> list[int]:
        """Up to max_tokens tokens that might follow the state."""
        if self._is_ragged:
            max_tokens = self._dice.randint(0, max_tokens)
        draft = []
        for _ in range(max_tokens):
            token_id = model.next_token(state)
            if self._dice.random() >= self._accuracy:
                token_id = model.next_token(state, {token_id})
            draft.append(token_id)
            state = model.read((token_id,), state)
        return draft

    def survival(self, num_drafts: int) -> tuple[float, ...]:
        """Probability that the 1st, 2nd, … token and all before it are right."""
        return tuple(self._accuracy**length for length in range(1, num_drafts + 1))


class _FakeRow:
    __slots__ = ("draft", "earliest_end", "end_token_ids", "params", "state", "token_ids")

    def __init__(self, row: NewRow, model: FakeModel) -> None:
        self.token_ids = list(row.token_ids)
        self.state = model.read(row.token_ids)
        self.params = row.params
        self.end_token_ids = row.end_token_ids
        self.earliest_end = row.num_prompt_tokens + row.params.min_tokens
        self.draft: list[int] = []


class FakeExecutor:
    """Runs plans against a FakeModel.

    Attributes:
        row_faults: request id -> error; that row alone fails, once, at the next step it takes part in.
        step_fault: raised once in place of the next result; the engine is dead then.
        max_step_tokens: a step with more raises StepMemoryError; None = memory for all.
        num_steps: steps run.
        is_closed: True once closed.
    """

    def __init__(
        self, model: FakeModel | None = None, *, drafts: FakeDrafts | None = None, step_s: float = 0.0
    ) -> None:
        """Without drafts nothing is proposed; step_s is the time that a step pretends to take."""
        self.model = model or FakeModel()
        self.row_faults: dict[int, str] = {}
        self.step_fault: Exception | None = None
        self.max_step_tokens: int | None = None
        self.num_steps = 0
        self.is_closed = False
        self._drafts = drafts
        self._step_s = step_s
        self._rows: dict[int, _FakeRow] = {}
        self._in_flight: deque[tuple[float, StepResult]] = deque()  # (when it will be done, what it comes to)

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step."""
        self.launch(plan)
        return self.collect()

    def launch(self, plan: StepPlan) -> None:
        """Work it all out, and keep it back until the step's time is over; steps take their time one after another."""
        result = self._result(plan)
        last_s = self._in_flight[-1][0] if self._in_flight else 0.0
        self._in_flight.append((max(last_s, time.monotonic()) + self._step_s, result))

    def collect(self) -> StepResult:
        """The oldest step's result, when it is due."""
        due_s, result = self._in_flight.popleft()
        if self._step_s:
            time.sleep(max(due_s - time.monotonic(), 0.0))
        return result

    def _result(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        if self.step_fault is not None:
            fault, self.step_fault = self.step_fault, None
            raise fault
        for request_id in plan.dropped:
            del self._rows[request_id]
        for new_row in plan.new_rows:
            self._rows[new_row.request_id] = _FakeRow(new_row, self.model)
        if self.max_step_tokens is not None and plan.num_tokens > self.max_step_tokens:
            raise StepMemoryError(f"no memory for {plan.num_tokens} tokens")
        results = [self._run_row(self._rows[row_plan.request_id], row_plan) for row_plan in plan.rows]
        if self.row_faults:
            self._inject(plan, results)
        rows: Sequence[RowResult] = results
        if all(row == RowResult(row.token_ids) and row.token_ids for row in results):
            rows = TokenRows([row.token_ids for row in results])  # as a worker's
        return StepResult(rows, forward_ms=self._step_s * 1000)

    def close(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._in_flight.clear()
        self.is_closed = True

    def _run_row(self, row: _FakeRow, plan: RowPlan) -> RowResult:
        prompt_logprobs = self._prompt_logprobs(row, plan) if row.params.prompt_logprobs is not None else None
        if not plan.wants_token:
            return RowResult([], prompt_logprobs=prompt_logprobs)
        token_ids = self._verify(row, row.draft[: plan.max_draft])
        row.draft = []
        survival: tuple[float, ...] = ()
        drafter = ""
        if plan.next_draft and self._drafts is not None:
            row.draft = self._drafts.propose(self.model, row.state, plan.next_draft)
            survival = self._drafts.survival(len(row.draft))
            drafter = self._drafts.name
        logprobs = None
        if row.params.logprobs is not None:
            logprobs = [self._logprobs(token_id, row.params.logprobs) for token_id in token_ids]
        return RowResult(token_ids, plan.max_draft, survival, drafter, logprobs, prompt_logprobs)

    def _verify(self, row: _FakeRow, draft: list[int]) -> list[int]:
        """The drafts that the model agrees with, and the one token more that it says itself."""
        known = row.token_ids
        num_before = len(known)
        for drafted in (*draft, None):
            banned = row.end_token_ids if len(known) < row.earliest_end else _NO_TOKENS
            token_id = self.model.next_token(row.state, banned)
            known.append(token_id)
            row.state = self.model.read((token_id,), row.state)
            if token_id != drafted:
                break
        return known[num_before:]

    def _prompt_logprobs(self, row: _FakeRow, plan: RowPlan) -> list[TokenLogprobs]:
        end = min(plan.num_computed + plan.num_new, row.earliest_end - row.params.min_tokens)
        fed = row.token_ids[max(plan.num_computed, 1) : end]
        return [self._logprobs(token_id, row.params.prompt_logprobs or 0) for token_id in fed]

    def _logprobs(self, token_id: int, num_top: int) -> TokenLogprobs:
        others = [other for other in self.model.alphabet if other != token_id]
        top = [token_id, *others][:num_top]
        return TokenLogprobs(token_id, -0.5, 1, tuple((other, -0.5 - rank) for rank, other in enumerate(top)))

    def _inject(self, plan: StepPlan, results: list[RowResult]) -> None:
        for index, row_plan in enumerate(plan.rows):
            error = self.row_faults.pop(row_plan.request_id, None)
            if error is not None:
                results[index] = RowResult([], error=error)
