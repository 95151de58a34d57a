"""Takes in what a step came to: tokens that passed, blocks that filled up, requests that ended.

Rows that left between plan and commit (aborts) are passed over: their blocks are free already. Knows nothing about how
tokens were chosen.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy
from threefold.metrics import EngineStats
from threefold.request import FinishReason, Request, RequestStatus
from threefold.schedule.drafting import shape_of
from threefold.schedule.running import Row, RunningBatch
from threefold.step import RowPlan, RowResult, StepPlan, StepResult, TokenDelta, TokenLogprobs, TokenRows


@dataclass(slots=True)
class Settled:
    """A step taken in as far as the next plan needs it, and what is still to be told of it."""

    plan: StepPlan
    result: StepResult
    deltas: list[TokenDelta | None] = field(default_factory=list)
    """In the order of the plan; None = one of `going_on`, which are in that order, too."""
    going_on: list[tuple[Request, int, list[int], str, int, list[TokenLogprobs] | None]] = field(default_factory=list)
    """Rows that got tokens and nothing else: request, tokens computed before, tokens, who drafted, drafts verified,
    log-probabilities. Plain tuples, as one is made a row and step."""
    verified: list[tuple[str, int, int]] = field(default_factory=list)
    """Of the other rows that had drafts: who drafted, drafts, those accepted."""
    steady: Steady | None = None
    """In place of all that where nearly all rows got a token and nothing else."""

    @property
    def num_tokens(self) -> int:
        """What all requests were given."""
        if self.steady is not None:
            return self.steady.num_tokens
        num = len(self.going_on)
        if self.plan.num_drafts:
            num = sum([len(entry[2]) for entry in self.going_on])
        if len(self.deltas) > len(self.going_on):
            num += sum([len(delta.token_ids) for delta in self.deltas if delta is not None])
        return num


class Steady(NamedTuple):
    """Rows that went on by one token each, and the few of their step that did not."""

    rows: list[Row | None]
    """None = one of the others."""
    token_ids: list[list[int]]
    others: dict[int, TokenDelta | None]
    """By place in the plan; None = there is nothing to be said."""

    @property
    def num_tokens(self) -> int:
        """Those of all rows."""
        of_others = sum([len(delta.token_ids) for delta in self.others.values() if delta is not None])
        return len(self.rows) - len(self.others) + of_others


class Committer:
    """Applies results to the running batch, in two parts: the device may have to wait for the first of them."""

    def __init__(self, cache: CacheManager, controller: DraftPolicy, running: RunningBatch, stats: EngineStats) -> None:
        self._cache = cache
        self._controller = controller
        self._running = running
        self._stats = stats

    def settle(self, plan: StepPlan, result: StepResult) -> Settled:
        """Apply a result as far as the next plan needs it: known tokens, requests that ended, drafts at hand."""
        settled = Settled(plan, result)
        num_running = len(self._running.by_id)
        if plan.edges is not None and isinstance(result.rows, TokenRows):
            settled.steady = self._settle_steady(plan, plan.edges, result.rows)
        else:
            self._settle_rows(settled)
        if len(self._running.by_id) < num_running:
            self._running.sweep()
        if self._controller.is_learning:
            self._teach(settled)
        if self._cache.num_free_blocks < len(self._running.rows):
            # One of them may be preempted, and finds its blocks again then. With a block spare for each nobody is.
            self._publish(settled)
        return settled

    def report(self, settled: Settled) -> list[TokenDelta]:
        """Do the rest. Returns a delta for each request with new tokens or an end."""
        self._publish(settled)
        deltas = self._deltas(settled)
        stats = self._stats
        stats.num_steps += 1
        stats.generated_tokens += settled.num_tokens
        stats.num_draft_faults += settled.result.num_draft_faults
        bucket = 1 << (settled.plan.num_tokens - 1).bit_length()
        stats.iteration_tokens[bucket] = stats.iteration_tokens.get(bucket, 0) + 1
        return deltas

    def fail(self, row: Row, error: str) -> TokenDelta:
        """End a request outside of a step."""
        delta = self._fail(row, error)
        self._running.sweep()
        return delta

    def _settle_rows(self, settled: Settled) -> None:
        """The hot loop.

        tokens fed     [ known ........ | drafts ................... ]
                       num_computed     | accepted     | rejected    |
        computed now   ........................ before )
        """
        by_id, observe = self._running.by_id, self._controller.observe
        deltas, going_on = settled.deltas, settled.going_on
        request_ids, all_computed, all_new, all_drafts, _, all_want, _ = settled.plan.columns
        plans = zip(request_ids, all_computed, all_new, all_drafts, all_want, settled.result.rows, strict=True)
        for place, (request_id, num_computed, num_new, max_draft, wants_token, row_result) in enumerate(plans):
            token_ids, num_drafted, survival, drafter, logprobs, _, error = row_result
            row = by_id.get(request_id)
            if row is None:
                continue
            if error is not None or (wants_token and not token_ids):
                deltas.append(self._fail(row, error or "the step gave no token"))
                continue
            request = row.request
            computed = num_computed + num_new - max_draft
            verified = row.drafter
            if num_drafted:
                num_accepted = len(token_ids) - 1
                computed += num_accepted
                observe(request_id, verified, num_drafted, num_accepted)
            row.survival = survival
            row.drafter = drafter
            known = request.token_ids
            goes_on = (
                len(known) + len(token_ids) < request.max_total_tokens and num_computed >= request.num_prompt_tokens
            )
            if goes_on and token_ids and request.end_token_ids.isdisjoint(token_ids):
                known += token_ids
                request.num_computed = computed
                deltas.append(None)
                going_on.append((request, num_computed, token_ids, verified, num_drafted, logprobs))
                continue
            if num_drafted:
                settled.verified.append((verified, num_drafted, num_accepted))
            delta = self._settle_row(row, settled.plan.rows[place], row_result, computed)
            if delta.token_ids:
                deltas.append(delta)

    def _settle_steady(self, plan: StepPlan, edges: Collection[int], results: TokenRows) -> Steady:
        """The same where each row has one token: only those that begin or end are looked at one by one."""
        columns, token_ids = plan.columns, results.token_ids
        rows = list(map(self._running.by_id.get, columns.request_ids))
        places, ends = set(edges), self._running.end_token_ids
        drawn = [ids[0] for ids in token_ids]
        if not ends.isdisjoint(drawn):
            places.update([place for place, token_id in enumerate(drawn) if token_id in ends])
        others: dict[int, TokenDelta | None] = {}
        for place in sorted(places):
            row, rows[place], others[place] = rows[place], None, None
            if row is not None:
                planned = plan.rows[place]
                delta = self._settle_row(row, planned, results[place], planned.num_computed + planned.num_new)
                others[place] = delta if delta.token_ids else None
        num_others = 0
        for row, num_computed, ids in zip(rows, columns.num_computed, token_ids, strict=True):
            if row is None:
                num_others += 1
                continue
            request = row.request
            request.token_ids += ids
            request.num_computed = num_computed + 1
        if num_others > len(others):  # some left while the step ran
            others |= {place: None for place, row in enumerate(rows) if row is None and place not in others}
        return Steady(rows, token_ids, others)

    def _settle_row(self, row: Row, row_plan: RowPlan, row_result: RowResult, computed: int) -> TokenDelta:
        """A part of a prompt, or perhaps the end: all there is to do about it."""
        request, num_computed, num_drafted = row.request, row_plan.num_computed, row_result.num_drafted
        token_ids = _append_until_end(request, row_result.token_ids)
        request.num_computed = computed = min(computed, request.num_tokens)  # drafts behind an end do not count
        block_size = self._cache.block_size
        if computed // block_size > num_computed // block_size:
            self._cache.publish(request, num_computed)
        delta = TokenDelta(
            request.request_id,
            token_ids,
            request.finish_reason,
            request.stop_token_id,
            row_result.logprobs and row_result.logprobs[: len(token_ids)],
            num_drafted=num_drafted,
            num_accepted=len(row_result.token_ids) - 1 if num_drafted else 0,
        )
        if num_computed < request.num_prompt_tokens:
            delta = self._take_prompt(row, row_plan, row_result, delta)
        if request.finish_reason is not None:
            self._end(row)
        return delta

    def _teach(self, settled: Settled) -> None:
        """What the policy plans with."""
        result = settled.result
        if result.glimpses:
            self._controller.glimpse(result.glimpses)
        shape = shape_of(settled.plan.columns)
        self._controller.observe_step(shape, result.forward_ms, result.draft_ms, settled.num_tokens)

    def _publish(self, settled: Settled) -> None:
        """Make the blocks findable that filled up in rows that go on; a second time changes nothing."""
        block_size = self._cache.block_size
        if settled.steady is not None:
            last = block_size - 1
            for row, num_before in zip(settled.steady.rows, settled.plan.columns.num_computed, strict=True):
                if num_before % block_size == last and row is not None:
                    self._cache.publish(row.request, num_before)
        for request, num_before, _, _, _, _ in settled.going_on:
            if request.num_computed // block_size > num_before // block_size:
                self._cache.publish(request, num_before)

    def _deltas(self, settled: Settled) -> list[TokenDelta]:
        """Put the deltas together, and count what was verified for them."""
        if settled.steady is not None:
            return _steady_deltas(settled.plan, settled.steady)
        deltas: list[TokenDelta] = []
        verified: dict[tuple[str, int, int], int] = {}  # rows, by drafter, drafts and those accepted
        for outcome in settled.verified:
            verified[outcome] = verified.get(outcome, 0) + 1
        going_on = iter(settled.going_on)
        for delta in settled.deltas:
            if delta is not None:
                deltas.append(delta)
                continue
            request, _, token_ids, drafter, num_drafted, logprobs = next(going_on)
            num_accepted = 0
            if num_drafted:
                num_accepted = len(token_ids) - 1
                outcome = drafter, num_drafted, num_accepted
                verified[outcome] = verified.get(outcome, 0) + 1
            request_id = request.request_id
            deltas.append(
                TokenDelta(request_id, token_ids, None, None, logprobs, None, None, 0, num_drafted, num_accepted)
            )
        for (drafter, num_drafted, num_accepted), num_rows in verified.items():
            self._count_drafts(drafter, num_drafted, num_accepted, num_rows)
        return deltas

    def _take_prompt(self, row: Row, row_plan: RowPlan, row_result: RowResult, delta: TokenDelta) -> TokenDelta:
        """A part of the prompt was computed; complete the delta if it is the request's first.

        A request preempted while it generated computes its prompt again; its first delta has long been sent.
        """
        request = row.request
        end = min(row_plan.num_computed + row_plan.num_new, request.num_prompt_tokens)
        self._stats.prompt_tokens_computed += end - row_plan.num_computed
        row.prompt_logprobs += row_result.prompt_logprobs or ()
        if request.num_output_tokens > len(delta.token_ids):
            return delta
        return _complete_first(row, delta)

    def _count_drafts(self, drafter: str, num_drafted: int, num_accepted: int, num_rows: int) -> None:
        """So many rows had so many drafts, of which so many were accepted."""
        stats = self._stats
        stats.num_drafts += num_rows
        stats.num_draft_tokens += num_rows * num_drafted
        stats.num_accepted_tokens += num_rows * num_accepted
        stats.drafted_by[drafter] = stats.drafted_by.get(drafter, 0) + num_rows * num_drafted
        stats.accepted_by[drafter] = stats.accepted_by.get(drafter, 0) + num_rows * num_accepted
        per_position = stats.accepted_per_position
        per_position += [0] * (num_drafted - len(per_position))
        for position in range(num_accepted):
            per_position[position] += num_rows

    def _fail(self, row: Row, error: str) -> TokenDelta:
        """One row's fault ends its request and nothing else."""
        request = row.request
        self._stats.num_request_errors += 1
        request.finish_reason = FinishReason.ERROR
        self._end(row)
        delta = TokenDelta(request.request_id, [], FinishReason.ERROR, error=error)
        return delta if request.num_output_tokens else _complete_first(row, delta)

    def _end(self, row: Row) -> None:
        row.request.status = RequestStatus.FINISHED
        self._running.leave(row)


def _steady_deltas(plan: StepPlan, steady: Steady) -> list[TokenDelta]:
    new = tuple.__new__  # several times as fast as TokenDelta(…)
    deltas: list[TokenDelta] = [
        new(TokenDelta, (request_id, token_ids, None, None, None, None, None, 0, 0, 0, None))
        for request_id, token_ids in zip(plan.columns.request_ids, steady.token_ids, strict=True)
    ]
    for place in sorted(steady.others, reverse=True):
        delta = steady.others[place]
        if delta is None:
            del deltas[place]
        else:
            deltas[place] = delta
    return deltas


def _append_until_end(request: Request, token_ids: list[int]) -> list[int]:
    """Append tokens up to the one that ends the request, if one does. Returns the tokens appended."""
    known = request.token_ids
    earliest_end = request.num_prompt_tokens + request.params.min_tokens
    for index, token_id in enumerate(token_ids):
        is_end = token_id in request.end_token_ids and len(known) >= earliest_end
        known.append(token_id)
        if is_end:
            request.finish_reason = FinishReason.STOP
            request.stop_token_id = token_id
        elif len(known) >= request.max_total_tokens:
            request.finish_reason = FinishReason.LENGTH
        else:
            continue
        return token_ids[: index + 1]
    return token_ids


def _complete_first(row: Row, delta: TokenDelta) -> TokenDelta:
    """Add what a request's first delta carries."""
    request = row.request
    admitted_s = request.arrival_s if request.first_scheduled_s is None else request.first_scheduled_s
    return delta._replace(
        prompt_logprobs=row.prompt_logprobs or None,
        num_cached_tokens=request.num_cached_tokens,
        queue_s=max(admitted_s - request.arrival_s, 0.0),
    )
