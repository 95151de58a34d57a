"""The engine's heart: plan, launch, collect, settle, report. Read this first.

    in order      plan 1  launch 1  collect 1  settle 1  report 1 │ plan 2  ...
    overlapped    plan 2  launch 2  collect 1  settle 1  report 1 │ plan 3  launch 3  collect 2  ...
    with drafts   collect 1  settle 1  plan 2  launch 2  report 1 │ collect 2  settle 2  plan 3  ...

Overlapped, the device always has the next step queued while Python commits and its caller sends what came out. Where a
step cannot be planned without the one before, the device rests until that one is settled: tokens appended, requests
ended, drafts at hand. All else that a result means comes behind the next launch.

Knows the scheduler and, by protocol, an executor; nothing about tensors, text, processes or HTTP. One thread calls it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from threefold.engine.price import DraftPrice
from threefold.errors import ContextLengthError, InvalidRequestError, StepMemoryError
from threefold.metrics import EngineStats
from threefold.request import Request, check_prompt_ids
from threefold.schedule.commit import Settled
from threefold.schedule.scheduler import Scheduler
from threefold.step import Executor, StepPlan, TokenDelta

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StepTimes:
    """Where a call of `step` spent its time, seconds."""

    plan_s: float = 0.0
    launch_s: float = 0.0
    wait_s: float = 0.0
    commit_s: float = 0.0


class EngineCore:
    """Turns requests into tokens, a step at a time.

    Args:
        scheduler: decides.
        executor: computes.
        vocab_size: token ids are below it.
        is_overlapped: launch the next step before this one's result is known; for executors that return from `launch`
            before the work is done.
        clock: seconds, only going forward.

    Attributes:
        times: of the last step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        vocab_size: int,
        is_overlapped: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._vocab_size = vocab_size
        self._is_overlapped = is_overlapped
        self._clock = clock
        self._in_flight: StepPlan | None = None
        self._failed: StepPlan | None = None  # a plan that the device had no memory for
        self._price = DraftPrice(is_overlapped)
        self.times = StepTimes()
        self._step_s = 0.0
        self._schedule_s = 0.0

    def step(self) -> list[TokenDelta]:
        """Run one step. An exception means that the engine is dead; one row's fault is in its delta."""
        self.times = StepTimes()
        deltas: list[TokenDelta] = []
        plan = self._in_flight or self._launch(self.scheduler.plan)
        if plan is not None:
            ahead = self._launch(lambda: self.scheduler.plan_ahead(plan)) if self._is_overlapped else None
            settled = self._collect(plan)
            if self._is_overlapped and ahead is None and self._failed is None:
                ahead = self._launch(self.scheduler.plan)
            self._in_flight = ahead
            if settled is not None:
                deltas = self._report(settled)
        if not self.has_work:
            self._price.rest()
        if self._failed is not None:
            deltas += self.scheduler.retreat(self._failed)
            self._failed = None
        if plan is not None and not self.has_work:
            self._check_idle()
        self._add_times()
        return deltas

    def add_request(self, request: Request) -> None:
        """A request arrives; it is checked here, whatever door it came in by.

        Raises:
            InvalidRequestError: a token id outside the vocabulary, or no token at all.
            ContextLengthError: the prompt leaves no room for an answer, or the whole could never fit into the cache.
            OverloadedError: there are latency targets, and its first token would come too late.
        """
        prompt = request.token_ids
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens; at least one is needed", param="prompt")
        check_prompt_ids(prompt, self._vocab_size)
        request.params.check_vocabulary(self._vocab_size)
        if len(prompt) >= request.max_total_tokens:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens and the request may have {request.max_total_tokens} in all; "
                "at least one must be left for the answer",
                param="prompt",
            )
        if request.max_total_tokens > self.scheduler.capacity_tokens:
            raise ContextLengthError(
                f"the request may grow to {request.max_total_tokens} tokens, the KV cache holds "
                f"{self.scheduler.capacity_tokens}; ask for fewer tokens",
                param="max_tokens",
            )
        self.scheduler.add(request)

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests and free all they hold at once; ids that are not here (any more) are ignored."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        """True while a request runs or waits."""
        return self.scheduler.has_work or self._in_flight is not None

    def stats(self) -> EngineStats:
        """A snapshot of counters since the start and of gauges now."""
        return replace(self.scheduler.stats(), step_s=self._step_s, schedule_s=self._schedule_s)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Free what the executor holds; the engine is not used again."""
        self.executor.close()

    def _launch(self, decide: Callable[[], StepPlan | None]) -> StepPlan | None:
        """Plan a step and start it; None = there is none, or the device has no memory for it."""
        began_s = self._clock()
        plan = decide()  # who runs, how many tokens, how long a draft
        planned_s = self._clock()
        self.times.plan_s += planned_s - began_s
        if plan is None:
            return None
        try:
            self.executor.launch(plan)  # forward, sample
        except StepMemoryError as error:
            self._fail(plan, error)
            return None
        finally:
            self.times.launch_s += self._clock() - planned_s
        return plan

    def _collect(self, plan: StepPlan) -> Settled | None:
        """Wait for a step and settle it; None = the device had no memory for it."""
        began_s = self._clock()
        try:
            result = self.executor.collect()  # verify, propose next drafts
        except StepMemoryError as error:
            self._fail(plan, error)
            return None
        collected_s = self._clock()
        if self.scheduler.is_learning:
            result = self._price.put(plan, result, collected_s)
        settled = self.scheduler.settle(plan, result)  # accept, finish, free, learn
        self.times.wait_s += collected_s - began_s
        self.times.commit_s += self._clock() - collected_s
        return settled

    def _report(self, settled: Settled) -> list[TokenDelta]:
        """What the next launch need not wait for."""
        began_s = self._clock()
        deltas = self.scheduler.report(settled)  # publish blocks, count
        self.times.commit_s += self._clock() - began_s
        return deltas

    def _fail(self, plan: StepPlan, error: StepMemoryError) -> None:
        logger.warning("a step of %d rows and %d tokens: %s", len(plan.rows), plan.num_tokens, error)
        self._failed = plan

    def _check_idle(self) -> None:
        fault = self.scheduler.idle_fault()
        if fault is not None:
            logger.error("%s: a leak in the engine, please report it", fault)

    def _add_times(self) -> None:
        times = self.times
        self._schedule_s += times.plan_s + times.commit_s
        self._step_s += times.plan_s + times.launch_s + times.wait_s + times.commit_s
