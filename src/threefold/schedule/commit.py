"""Takes in what a step came to: tokens that passed, blocks that filled up, requests that ended.

Rows that left between plan and commit (aborts) are passed over: their blocks are free already. Knows nothing about how
tokens were chosen.
"""

from __future__ import annotations

from threefold.cache.manager import CacheManager
from threefold.draft.controller import DraftPolicy
from threefold.metrics import EngineStats
from threefold.request import FinishReason, Request, RequestStatus
from threefold.schedule.drafting import shape_of
from threefold.schedule.running import Row, RunningBatch
from threefold.step import RowPlan, RowResult, StepPlan, StepResult, TokenDelta


class Committer:
    """Applies results to the running batch."""

    def __init__(self, cache: CacheManager, controller: DraftPolicy, running: RunningBatch, stats: EngineStats) -> None:
        self._cache = cache
        self._controller = controller
        self._running = running
        self._stats = stats

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """Apply a result. Returns a delta for each request with new tokens or an end."""
        num_running = len(self._running.by_id)
        deltas = self._commit_rows(plan, result)
        if len(self._running.by_id) < num_running:
            self._running.sweep()
        if result.glimpses:
            self._controller.glimpse(result.glimpses)
        num_committed = sum([len(delta.token_ids) for delta in deltas])
        self._count_step(plan, result, num_committed)
        return deltas

    def fail(self, row: Row, error: str) -> TokenDelta:
        """End a request outside of a step."""
        delta = self._fail(row, error)
        self._running.sweep()
        return delta

    def _commit_rows(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        """The hot loop.

        tokens fed     [ known ........ | drafts ................... ]
                       num_computed     | accepted     | rejected    |
        computed now   ........................ before )
        """
        by_id = self._running.by_id
        block_size = self._cache.block_size
        deltas: list[TokenDelta] = []
        verified: dict[tuple[str, int, int], int] = {}  # rows, by drafter, drafts and those accepted
        for row_plan, row_result in zip(plan.rows, result.rows, strict=True):
            request_id, num_computed, num_new, max_draft, _, wants_token, _ = row_plan
            token_ids, num_drafted, survival, drafter, logprobs, _, error = row_result
            row = by_id.get(request_id)
            if row is None:
                continue
            request = row.request
            if error is not None or (wants_token and not token_ids):
                deltas.append(self._fail(row, error or "the step gave no token"))
                continue
            computed = num_computed + num_new - max_draft
            num_accepted = 0
            if num_drafted:
                num_accepted = len(token_ids) - 1
                computed += num_accepted
                self._controller.observe(request_id, row.drafter, num_drafted, num_accepted)
                outcome = row.drafter, num_drafted, num_accepted
                verified[outcome] = verified.get(outcome, 0) + 1
            row.survival = survival
            row.drafter = drafter
            known = request.token_ids
            if len(known) + len(token_ids) < request.max_total_tokens and request.end_token_ids.isdisjoint(token_ids):
                known += token_ids
            else:
                token_ids = _append_until_end(request, token_ids)
                logprobs = logprobs and logprobs[: len(token_ids)]
                computed = min(computed, len(known))  # drafts behind an end do not count
            request.num_computed = computed
            if computed // block_size > num_computed // block_size:
                self._cache.publish(request, num_computed)
            end, stop_token_id = request.finish_reason, request.stop_token_id
            delta = TokenDelta(
                request_id, token_ids, end, stop_token_id, logprobs, None, None, 0, num_drafted, num_accepted
            )
            if num_computed < request.num_prompt_tokens:
                delta = self._take_prompt(row, row_plan, row_result, delta)
            if token_ids:
                deltas.append(delta)
            if request.finish_reason is not None:
                self._end(row)
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

    def _count_step(self, plan: StepPlan, result: StepResult, num_committed: int) -> None:
        shape = shape_of(plan.rows)
        self._controller.observe_step(shape, result.forward_ms, result.draft_ms, num_committed)
        stats = self._stats
        stats.num_steps += 1
        stats.generated_tokens += num_committed
        stats.num_draft_faults += result.num_draft_faults
        bucket = 1 << (shape.num_tokens - 1).bit_length()
        stats.iteration_tokens[bucket] = stats.iteration_tokens.get(bucket, 0) + 1


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
