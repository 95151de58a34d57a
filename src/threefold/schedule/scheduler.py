"""Decides what each step computes: who runs, how many tokens, how many drafts.

There are no phases. A running request has tokens whose KV is computed and tokens whose KV is not; a step computes some
more of them, be it a prompt's chunk, the one token just sampled, or that token and drafts behind it. Knows nothing
about tensors, devices or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy
from threefold.errors import ConfigError
from threefold.metrics import EngineStats
from threefold.request import FinishReason, Request, RequestStatus
from threefold.schedule.admission import Admission
from threefold.schedule.ahead import AheadPlanner
from threefold.schedule.backoff import Backoff
from threefold.schedule.commit import Committer, Settled
from threefold.schedule.drafting import DraftPlanner, shape_of
from threefold.schedule.lending import Lending
from threefold.schedule.running import Row, RunningBatch
from threefold.schedule.slo import NO_LIMITS, Slo, StepLimits
from threefold.step import ColumnRows, NewRow, RowColumns, RowPlan, StepPlan, StepResult, TokenDelta

POLICIES = ("fcfs", "priority")
MIN_TOKENS = 16
"""A step this small that the device has no memory for will not get any smaller."""
_SEED_STEP = 0x9E3779B97F4A7C15  # odd, so consecutive request ids give seeds far apart (golden ratio, Knuth)


class Scheduler:
    """Continuous batching over a budget of tokens a step.

    Call `plan`, run the plan, call `commit`, again and again; `add` and `abort` come in between. Steps may overlap:
    while a plan runs, `plan_ahead` gives the next one, and `commit` takes in their results in turn. What `commit` does
    is `settle` and `report`: who has a device to feed calls `plan` in between.
    """

    def __init__(
        self,
        cache: CacheManager,
        controller: DraftPolicy,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int = 0,
        policy: str = "fcfs",
        seed: int = 0,
        lent_block_tokens: int = 0,
        slo: Slo | None = None,
        max_wanted_beside_prompts: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise ConfigError for a policy that is not known and for limits that contradict each other.

        With more than max_wanted_beside_prompts tokens to draw, a step that feeds prompts would run without a captured
        graph, many times as long: then it has fewer drafts. None = there are no graphs.
        """
        if policy not in POLICIES:
            raise ConfigError(f"scheduling policy must be one of {', '.join(POLICIES)}, got {policy!r}")
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ConfigError(
                f"max_num_seqs ({max_num_seqs}) must be between 1 and max_num_batched_tokens "
                f"({max_num_batched_tokens}): every running request takes at least one token of a step"
            )
        self._cache = cache
        self._controller = controller
        self._backoff = Backoff(max_num_batched_tokens, max_num_seqs)
        self._max_chunk = long_prefill_token_threshold or max_num_batched_tokens
        self._seed = seed
        self._stats = EngineStats()
        self._running = RunningBatch(cache, controller)
        self._slo = slo
        self._max_wanted_beside_prompts = max_wanted_beside_prompts
        self._clock = clock
        self._admission = Admission(
            cache, self._running, self._stats, backoff=self._backoff, policy=policy, slo=slo, clock=clock
        )
        self._ahead = AheadPlanner(cache, controller, self._running)
        self._drafts = DraftPlanner(cache, controller)
        self._lending = Lending(cache.loans, lent_block_tokens)
        self._committer = Committer(cache, controller, self._running, self._stats)

    @property
    def has_work(self) -> bool:
        """True while a request runs or waits."""
        return bool(self._running.rows) or len(self._admission.waiting) > 0

    @property
    def is_learning(self) -> bool:
        """Whether the times of steps teach anybody what drafts cost."""
        return self._controller.is_learning

    @property
    def capacity_tokens(self) -> int:
        """Most tokens that one request can ever have."""
        return self._cache.num_blocks * self._cache.block_size

    def add(self, request: Request) -> None:
        """A request arrives and waits for its turn; it must fit into `capacity_tokens`.

        Raises:
            OverloadedError: there are latency targets, and its first token would come too late.
        """
        self._admission.add(request)

    def abort(self, request_id: int) -> bool:
        """End a request wherever it stands and free all it holds at once; False = it is not here (any more)."""
        if self._slo is not None:
            self._slo.forget(request_id)
        row = self._running.by_id.get(request_id)
        if row is not None:
            self._running.leave(row)
            self._running.sweep()
            request = row.request
        else:
            waiting = self._admission.withdraw(request_id)
            if waiting is None:
                return False
            request = waiting
        request.status = RequestStatus.FINISHED
        request.finish_reason = FinishReason.ABORT
        return True

    def plan(self) -> StepPlan | None:
        """Decide the next step; None when there is nothing to do.

        Running requests come first, then waiting ones, and drafts get what both leave over.
        """
        plans: list[RowPlan] = []
        new_rows: list[NewRow] = []
        limits = self._open_step()
        edges: list[int] = []
        budget, num_prompt_tokens, has_drafts = self._plan_running(plans, edges, limits.num_prompt_tokens)
        num_running = len(plans)
        budget = self._plan_waiting(plans, new_rows, budget, num_prompt_tokens)
        if not plans:
            return None
        edges += range(num_running, len(plans))
        columns = RowColumns.of(plans)
        num_spare = self._cache.num_blocks if self._admission.is_short_of_blocks else len(self._running)
        if has_drafts and self._slo is not None:
            budget = self._slo.num_drafts(shape_of(columns), budget)
        if has_drafts and self._max_wanted_beside_prompts is not None and any(num > 1 for num in columns.num_new):
            budget = min(budget, self._max_wanted_beside_prompts - len(plans))
        if has_drafts and budget > 0:
            columns = self._drafts.plan(columns, self._running.by_id, budget, num_spare)
        else:
            columns = self._drafts.ask(columns, self._running.by_id)
        rows = ColumnRows(columns)
        lent = self._lending.lend(rows, num_spare)
        dropped, recalled = self._running.take_dropped(), self._cache.loans.take_recalled()
        return StepPlan(rows, new_rows, dropped, recalled, lent, edges=None if has_drafts else edges)

    def plan_ahead(self, in_flight: StepPlan) -> StepPlan | None:
        """Decide the step behind one that runs; None when its result is needed first, or nothing is left to do."""
        if not self._ahead.can_plan(in_flight):
            return None
        limits = self._open_step()
        columns, edges, goes_on, budget, num_prompt_tokens = self._ahead.plan_rows(
            in_flight, self._backoff.num_tokens, self._max_chunk, limits.num_prompt_tokens
        )
        joining: list[RowPlan] = []
        new_rows: list[NewRow] = []
        self._plan_waiting(joining, new_rows, budget, num_prompt_tokens)
        if edges is not None:
            edges += range(len(columns.request_ids), len(columns.request_ids) + len(joining))
        columns = self._drafts.ask(columns.followed_by(joining), self._running.by_id, in_flight)
        if not columns.request_ids:
            return None
        plan = StepPlan(
            ColumnRows(columns),
            new_rows,
            self._running.take_dropped(),
            self._cache.loans.take_recalled(),
            goes_on=goes_on and not new_rows,
            edges=edges,
        )
        self._ahead.follow(plan)
        return plan

    def settle(self, plan: StepPlan, result: StepResult) -> Settled:
        """Take in what a plan came to as far as the next plan needs it: tokens that passed, requests that ended."""
        self._backoff.recover()
        return self._committer.settle(plan, result)

    def report(self, settled: Settled) -> list[TokenDelta]:
        """Take in the rest: blocks that filled up, counters; the deltas of all that has happened.

        Call it once for each `settle`, before the next; one `plan` may come in between.
        """
        deltas = self._committer.report(settled)
        self._controller.catch_up()
        if self._slo is not None:
            shape = shape_of(settled.plan.columns)
            self._slo.end_step(shape, settled.result, deltas, self._clock(), has_work=self.has_work)
        return deltas

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Take in all that a plan came to."""
        return self.report(self.settle(plan, result))

    def retreat(self, plan: StepPlan) -> list[TokenDelta]:
        """A plan came to nothing for want of the device's memory, and no step is in flight: plan less from now on.

        The newer half of the running requests goes back to wait, and steps hold half the tokens. A request that does
        not fit alone ends.
        """
        self._controller.observe_step(shape_of(plan.columns), forward_ms=0.0, draft_ms=0.0, num_committed=0)
        rows = self._running.rows
        if len(rows) == 1 and plan.num_tokens <= MIN_TOKENS:
            return [self._committer.fail(rows[0], "the device has no memory left for this request")]
        num_kept = max(len(rows) // 2, 1)
        self._backoff.shrink(plan.num_tokens // 2, num_kept)
        while len(rows) > num_kept:
            self._admission.preempt(rows.pop())
        return []

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self._cache.reset_prefix_cache()

    def stats(self) -> EngineStats:
        """A snapshot of all that the scheduler counts."""
        return replace(
            self._stats,
            num_running=len(self._running),
            num_waiting=len(self._admission.waiting),
            num_blocks=self._cache.num_blocks,
            num_held_blocks=self._cache.num_held_blocks,
            num_cached_blocks=self._cache.num_cached_blocks,
            speculation_gain_ratio=self._controller.gain_ratio,
            speculation_gain_error=self._controller.gain_error,
            gain_by=dict(self._controller.gain_by_drafter),
            drafted_by=dict(self._stats.drafted_by),
            accepted_by=dict(self._stats.accepted_by),
            accepted_per_position=list(self._stats.accepted_per_position),
            iteration_tokens=dict(self._stats.iteration_tokens),
            slo=None if self._slo is None else self._slo.stats(),
        )

    def idle_fault(self) -> str | None:
        """What is wrong when nothing runs; O(1), None = nothing."""
        num_held = self._cache.num_held_blocks
        return f"{num_held} KV blocks are held though no request runs" if num_held else None

    def check_integrity(self) -> None:
        """Raise AssertionError if blocks leaked or are shared wrongly; slow, for tests."""
        self._cache.check_integrity(row.request for row in self._running.rows)

    def _open_step(self) -> StepLimits:
        """What latency targets leave to the next step."""
        if self._slo is None:
            return NO_LIMITS
        limits = self._slo.open_step(
            self._running.rows,
            self._admission.waiting.peek(),
            max_rows=self._backoff.num_rows,
            max_tokens=self._backoff.num_tokens,
            now_s=self._clock(),
        )
        self._admission.max_rows = limits.max_rows
        return limits

    def _plan_running(self, plans: list[RowPlan], edges: list[int], num_prompt_tokens: int) -> tuple[int, int, bool]:
        """Plan the running rows' known tokens, and note the places of those that begin or end; the hot loop.

        Returns:
            The tokens left of the budget and of the prompts', and whether rows that want a token have drafts at hand.

        Each row behind is sure of one token, so no prompt starves those who are generating. Only the last row is ever
        preempted, and rows are planned from the first on, so what is planned stays.
        """
        rows = self._running.rows
        budget = self._backoff.num_tokens
        has_drafts = False
        new = tuple.__new__  # several times as fast as RowPlan(…)
        for row in rows:
            request = row.request
            num_computed = request.num_computed
            num_known = len(request.token_ids)
            num_new = num_known - num_computed
            if num_new > 1:
                num_behind = len(rows) - len(plans) - 1
                num_new = min(num_new, self._max_chunk, budget - num_behind, max(num_prompt_tokens, 1))
                num_prompt_tokens -= num_new
            end = num_computed + num_new
            new_blocks: tuple[int, ...] = ()
            if end > row.num_slots:
                grown = self._grow(row, end)
                if grown is None:
                    break  # it was the last row itself that had to leave
                new_blocks = grown
            budget -= num_new
            wants_token = end == num_known
            if wants_token and row.survival:
                has_drafts = True
            if num_known + 1 >= request.max_total_tokens or num_computed < request.num_prompt_tokens or num_new > 1:
                edges.append(len(plans))
            plans.append(new(RowPlan, (request.request_id, num_computed, num_new, 0, new_blocks, wants_token, 0)))
        return budget, num_prompt_tokens, has_drafts

    def _grow(self, row: Row, num_tokens: int) -> tuple[int, ...] | None:
        """Give the row slots for num_tokens, preempting from the last row on; None = the row itself had to leave."""
        rows = self._running.rows
        while (new_blocks := self._cache.allocate(row.request, num_tokens)) is None:
            last = rows.pop()
            self._admission.preempt(last)
            if last is row:
                return None
        row.num_slots += len(new_blocks) * self._cache.block_size
        return new_blocks

    def _plan_waiting(self, plans: list[RowPlan], new_rows: list[NewRow], budget: int, num_prompt_tokens: int) -> int:
        """Admit waiting requests while rows, tokens and blocks allow. Returns the tokens left of the budget."""
        while budget > 0 and num_prompt_tokens > 0:
            row = self._admission.admit_next()
            if row is None:
                break
            request = row.request
            num_new = min(request.num_tokens - request.num_computed, self._max_chunk, budget, num_prompt_tokens)
            budget -= num_new
            num_prompt_tokens -= num_new
            wants_token = request.num_computed + num_new == request.num_tokens
            new_rows.append(self._new_row(request))
            blocks = tuple(request.block_ids)
            plans.append(RowPlan(request.request_id, request.num_computed, num_new, 0, blocks, wants_token, 0))
        return budget

    def _new_row(self, request: Request) -> NewRow:
        seed = request.params.seed
        return NewRow(
            request_id=request.request_id,
            token_ids=tuple(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            params=request.params,
            end_token_ids=request.end_token_ids,
            seed=(self._seed + request.request_id * _SEED_STEP) % 2**63 if seed is None else seed,
            cache_salt=request.cache_salt,
        )
