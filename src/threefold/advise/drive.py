"""A closed loop on an engine in this process: users who each send their next request when their answer is over.

Token ids in, figures out; no text, no HTTP. Also plays a server that batches statically: so many requests at once, and
nobody new before the last of them is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from threefold.advise.result import LoadResult
from threefold.errors import CallerError
from threefold.metrics import EngineStats
from threefold.request import Request, SamplingParams
from threefold.step import TokenDelta


class Ask(NamedTuple):
    """One thing to ask."""

    token_ids: list[int]
    max_tokens: int
    """Length of the answer; an end of sequence comes before only where end_token_ids say so."""
    temperature: float = 0.0
    end_token_ids: frozenset[int] = frozenset()


class Core(Protocol):
    """What is driven: engine.core.EngineCore, or a fake."""

    @property
    def has_work(self) -> bool:
        """True while a request runs or waits."""

    def add_request(self, request: Request) -> None:
        """A request arrives."""

    def step(self) -> list[TokenDelta]:
        """Run one step."""

    def stats(self) -> EngineStats:
        """Counters."""


class _Open:
    __slots__ = ("first_s", "num_tokens", "place", "start_s")

    def __init__(self, place: int, start_s: float) -> None:
        self.place = place
        self.start_s = start_s
        self.first_s = 0.0
        self.num_tokens = 0


class Drive:
    """One run.

    Attributes:
        outputs: answers, by the place of their request.
        result: the figures, when `run` is over.
    """

    def __init__(self, core: Core, clock: Callable[[], float] = time.perf_counter) -> None:
        self.outputs: dict[int, list[int]] = {}
        self.result = LoadResult()
        self._core = core
        self._clock = clock
        self._open: dict[int, _Open] = {}
        self._ready_s: deque[float] = deque()  # since when users have been waiting to send

    def run(self, asks: Sequence[Ask], users: int, *, is_static: bool = False) -> LoadResult:
        """Ask everything.

        Args:
            asks: in the order they are sent.
            users: requests in flight at most.
            is_static: a user may send only when nobody's request is in flight; the wait counts.
        """
        waiting = deque(enumerate(asks))
        began_s = self._clock()
        self._ready_s = deque([began_s] * users)
        while waiting or self._open:
            if not (is_static and self._open):
                self._send(waiting, users)
            self._step(is_full=bool(waiting) or len(self._open) == users)
        result = self.result
        result.duration_s = self._clock() - began_s
        result.stats = self._core.stats()
        return result

    def _send(self, waiting: deque[tuple[int, Ask]], users: int) -> None:
        while waiting and len(self._open) < users:
            place, ask = waiting.popleft()
            request = Request(
                place,
                ask.token_ids,
                SamplingParams(temperature=ask.temperature, max_tokens=ask.max_tokens, seed=place),
                max_total_tokens=len(ask.token_ids) + ask.max_tokens,
                end_token_ids=ask.end_token_ids,
                arrival_s=time.monotonic(),
            )
            try:
                self._core.add_request(request)
            except CallerError:
                self.result.num_too_long += 1
                continue
            self._open[place] = _Open(place, self._ready_s.popleft())
            self.outputs[place] = []

    def _step(self, *, is_full: bool) -> None:
        """One step of the engine."""
        began_s = self._clock()
        deltas = self._core.step()
        now_s = self._clock()
        self.result.take_step(now_s - began_s, len(self._open), now_s, is_full=is_full)
        for delta in deltas:
            self._take(delta, now_s)

    def _take(self, delta: TokenDelta, now_s: float) -> None:
        one = self._open[delta.request_id]
        if delta.token_ids:
            one.first_s = one.first_s or now_s
            one.num_tokens += len(delta.token_ids)
            self.outputs[one.place] += delta.token_ids
        if delta.finish_reason is None:
            return
        self.result.take_answer(one.start_s, one.first_s or now_s, now_s, one.num_tokens)
        self._ready_s.append(now_s)
        del self._open[delta.request_id]
