"""The engine's heart: plan, run, commit. Read this first.

Knows the scheduler and, by protocol, an executor; nothing about tensors, text, processes or HTTP. One thread calls it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from threefold.errors import ContextLengthError, InvalidRequestError
from threefold.metrics import EngineStats
from threefold.request import Request
from threefold.schedule.scheduler import Scheduler
from threefold.step import Executor, TokenDelta

logger = logging.getLogger(__name__)


class EngineCore:
    """Turns requests into tokens, a step at a time.

    Args:
        scheduler: decides.
        executor: computes.
        vocab_size: token ids are below it.
        clock: seconds, only going forward.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        *,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._vocab_size = vocab_size
        self._clock = clock
        self._step_s = 0.0
        self._schedule_s = 0.0

    def step(self) -> list[TokenDelta]:
        """Run one step. An exception means that the engine is dead; one row's fault is in its delta."""
        began_s = self._clock()
        plan = self.scheduler.plan()  # who runs, how many tokens, how long a draft
        if plan is None:
            return []
        planned_s = self._clock()
        result = self.executor.run(plan)  # forward, sample or verify, propose next drafts
        ran_s = self._clock()
        deltas = self.scheduler.commit(plan, result)  # accept, publish blocks, finish, free
        self._take_times(began_s, planned_s, ran_s)
        if not self.scheduler.has_work:
            self._check_idle()
        return deltas

    def add_request(self, request: Request) -> None:
        """A request arrives; it is checked here, whatever door it came in by.

        Raises:
            InvalidRequestError: a token id outside the vocabulary, or no token at all.
            ContextLengthError: the prompt leaves no room for an answer, or the whole could never fit into the cache.
        """
        prompt = request.token_ids
        if not prompt:
            raise InvalidRequestError("the prompt has no tokens; at least one is needed", param="prompt")
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            wrong = next(token_id for token_id in prompt if not 0 <= token_id < self._vocab_size)
            raise InvalidRequestError(
                f"token id {wrong} is outside the vocabulary of {self._vocab_size}", param="prompt"
            )
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
        return self.scheduler.has_work

    def stats(self) -> EngineStats:
        """A snapshot of counters since the start and of gauges now."""
        return replace(self.scheduler.stats(), step_s=self._step_s, schedule_s=self._schedule_s)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Free what the executor holds; the engine is not used again."""
        self.executor.close()

    def _check_idle(self) -> None:
        fault = self.scheduler.idle_fault()
        if fault is not None:
            logger.error("%s: a leak in the engine, please report it", fault)

    def _take_times(self, began_s: float, planned_s: float, ran_s: float) -> None:
        ended_s = self._clock()
        self._step_s += ended_s - began_s
        self._schedule_s += ended_s - ran_s + planned_s - began_s
