"""The real scheduler, cache and draft policy over a load, with a cost curve in place of a model.

A step takes what the curve says for its shape, and what the host adds; the clock is the sum of steps. So a minute of a
server's life passes in a second or two, on any machine, for any machine. Knows nothing about logs or verdicts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from threefold.advise.curve_executor import CurveExecutor, Machine
from threefold.advise.result import LoadResult
from threefold.advise.traffic import SimRequest
from threefold.cache.manager import CacheManager
from threefold.draft.policy import DraftPolicy, NoDrafts
from threefold.errors import OverloadedError
from threefold.request import Request, SamplingParams
from threefold.schedule.scheduler import Scheduler
from threefold.schedule.slo import Slo
from threefold.step import TokenDelta

_NO_ENDS: frozenset[int] = frozenset()
_PARAMS = SamplingParams(temperature=0.0, max_tokens=None)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a lever may change."""

    max_num_seqs: int
    max_num_batched_tokens: int
    has_prefix_cache: bool = True


class _Flight:
    """When a request came, said its first token and its last."""

    __slots__ = ("arrival_s", "first_s", "num_output", "num_prompt")

    def __init__(self, arrival_s: float, sim: SimRequest) -> None:
        self.arrival_s = arrival_s
        self.first_s = 0.0
        self.num_output = sim.source.num_output_tokens
        self.num_prompt = sim.source.num_prompt_tokens


class Simulation:
    """One load on one machine with one set of settings.

    Args:
        machine: what steps cost.
        settings: limits of the scheduler.
        policy: of drafts; it may have learned in an earlier simulation, as it would in a server.
        slo: latency targets to hold; who is refused for their sake does not come back.
    """

    def __init__(
        self, machine: Machine, settings: Settings, policy: DraftPolicy | None = None, slo: Slo | None = None
    ) -> None:
        self._executor = CurveExecutor(machine)
        cache = CacheManager(machine.num_blocks, machine.block_size, settings.has_prefix_cache)
        self._scheduler = Scheduler(
            cache,
            policy or NoDrafts(),
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=max(settings.max_num_batched_tokens, settings.max_num_seqs),
            slo=slo,
            clock=lambda: self._executor.clock_s,
        )
        self._flights: dict[int, _Flight] = {}
        self._result = LoadResult()
        self._next_id = 0

    def run(self, traffic: Sequence[SimRequest], concurrency: int | None = None) -> LoadResult:
        """Serve the traffic.

        Args:
            traffic: by arrival.
            concurrency: users who each send their next request when their answer is over, whatever the arrivals;
                None = requests come when they came.
        """
        waiting = deque(traffic)
        executor, scheduler = self._executor, self._scheduler
        first_s: float | None = None
        while waiting or self._flights:
            self._send_due(waiting, concurrency)
            if not self._flights:
                if waiting and concurrency is None:
                    executor.clock_s = max(executor.clock_s, waiting[0].arrival_s or 0.0)
                continue
            first_s = executor.clock_s if first_s is None else first_s
            began_s = executor.clock_s
            plan = scheduler.plan()
            assert plan is not None  # somebody is in flight
            deltas = scheduler.commit(plan, executor.run(plan))
            step_s = executor.clock_s - began_s
            num_open = len(self._flights)
            self._result.take_step(step_s, num_open, executor.clock_s, is_full=num_open == concurrency)
            for delta in deltas:
                self._take(delta)
        return self._finished(first_s or 0.0)

    def _send_due(self, waiting: deque[SimRequest], concurrency: int | None) -> None:
        """Send those whose time has come."""
        now_s = self._executor.clock_s
        while waiting:
            if concurrency is not None:
                if len(self._flights) >= concurrency:
                    return
                arrival_s = now_s
            else:
                arrival_s = waiting[0].arrival_s or 0.0
                if arrival_s > now_s:
                    return
            self._send(waiting.popleft(), arrival_s)

    def _send(self, sim: SimRequest, arrival_s: float) -> None:
        source = sim.source
        length = source.num_prompt_tokens + source.num_output_tokens
        if length > self._scheduler.capacity_tokens:
            self._result.num_too_long += 1
            return
        tokens = sim.tokens()
        request = Request(
            self._next_id,
            tokens[: source.num_prompt_tokens],
            _PARAMS,
            max_total_tokens=length,
            end_token_ids=_NO_ENDS,
            arrival_s=arrival_s,
        )
        try:
            self._scheduler.add(request)
        except OverloadedError:
            self._result.num_shed += 1
            return
        self._executor.expect(self._next_id, sim, tokens)
        self._flights[self._next_id] = _Flight(arrival_s, sim)
        self._next_id += 1

    def _take(self, delta: TokenDelta) -> None:
        flight = self._flights[delta.request_id]
        now_s = self._executor.clock_s
        if not flight.first_s:
            flight.first_s = now_s
        if delta.finish_reason is None:
            return
        self._result.take_answer(flight.arrival_s, flight.first_s, now_s, flight.num_output, flight.num_prompt)
        del self._flights[delta.request_id]
        self._executor.forget(delta.request_id)

    def _finished(self, first_s: float) -> LoadResult:
        result = self._result
        result.duration_s = self._executor.clock_s - first_s
        result.stats = self._scheduler.stats()
        return result
