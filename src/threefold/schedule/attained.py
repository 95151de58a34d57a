"""What came of the targets: first tokens and paces of the requests that were taken, held against what was predicted.

Knows times only; what follows from them is decided in slo.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from threefold.request import FinishReason, Request
from threefold.step import TokenDelta

MEMORY_ANSWERS = 256
"""Answers over which the attained shares are taken."""
MEMORY_FIRSTS = 64
"""First tokens that say how wrong predictions are."""
SHARE = 0.98
"""Of first tokens, those that come no later than is said; more than the 19 in 20 that are to keep the target."""
FIRST_ERROR = 1.1
"""Real over predicted while little was read."""
LEAST_READINGS = 8
MOST_ERROR = 4.0
"""A prediction that is worse than this is not mended by a factor."""
LEAST_SHARE = 0.2
"""Of the target: how wrong a prediction below this was does not matter."""


class _Flight:
    """A request from its arrival to its end."""

    __slots__ = ("first_s", "predicted_ms", "request")

    def __init__(self, request: Request, predicted_ms: float) -> None:
        self.request = request
        self.predicted_ms = predicted_ms
        self.first_s: float | None = None


class Attained:
    """Follows requests, and keeps what they came to.

    Args:
        ttft_ms: target of the first token, None = none.
        tpot_ms: target of the mean time between tokens, None = none.
    """

    def __init__(self, ttft_ms: float | None, tpot_ms: float | None) -> None:
        self._ttft_ms = ttft_ms
        self._tpot_ms = tpot_ms
        self._flights: dict[int, _Flight] = {}
        self._errors: deque[float] = deque(maxlen=MEMORY_FIRSTS)
        self._firsts: deque[bool] = deque(maxlen=MEMORY_ANSWERS)
        self._paces: deque[bool] = deque(maxlen=MEMORY_ANSWERS)
        self.error = FIRST_ERROR
        """Real over predicted first tokens: hardly any was worse; at least 1."""

    @property
    def ttft_share(self) -> float:
        """Of the last answers, those whose first token kept the target; 1 while there is none."""
        return _share(self._firsts)

    @property
    def tpot_share(self) -> float:
        """Of the last answers, those whose pace kept the target; 1 while there is none."""
        return _share(self._paces)

    def start(self, request: Request, predicted_ms: float) -> None:
        """A request was taken; its first token should come predicted_ms after its arrival."""
        self._flights[request.request_id] = _Flight(request, predicted_ms)

    def forget(self, request_id: int) -> None:
        """Nobody waits for the request any more."""
        self._flights.pop(request_id, None)

    def take(self, deltas: Iterable[TokenDelta], now_s: float) -> list[int]:
        """Take in what a step brought. Returns the lengths of the answers that ended in it."""
        ended = []
        for delta in deltas:
            if delta.queue_s is None and delta.finish_reason is None:
                continue
            flight = self._flights.get(delta.request_id)
            if flight is None:
                continue
            if delta.finish_reason is FinishReason.ERROR:
                self.forget(delta.request_id)
                continue
            if flight.first_s is None:
                self._begin(flight, now_s)
            if delta.finish_reason is not None:
                ended.append(self._end(flight, now_s))
        return ended

    def saved_ms(self, request_ids: Iterable[int], now_s: float) -> float:
        """The least that any of these has saved: how much later than now its tokens so far might have come; 0 = none.

        A request with n tokens after its first one, t ms ago, has saved tpot · n - t.
        """
        assert self._tpot_ms is not None
        least = None
        for request_id in request_ids:
            flight = self._flights.get(request_id)
            if flight is None or flight.first_s is None:
                continue
            num_later = flight.request.num_output_tokens - 1
            saved = self._tpot_ms * num_later - (now_s - flight.first_s) * 1000
            least = saved if least is None else min(least, saved)
        return max(least or 0.0, 0.0)

    def _begin(self, flight: _Flight, now_s: float) -> None:
        flight.first_s = now_s
        if self._ttft_ms is None:
            return
        ttft_ms = (now_s - flight.request.arrival_s) * 1000
        self._firsts.append(ttft_ms <= self._ttft_ms)
        self._errors.append(ttft_ms / max(flight.predicted_ms, LEAST_SHARE * self._ttft_ms))
        if len(self._errors) >= LEAST_READINGS:
            worst = sorted(self._errors)[int(SHARE * len(self._errors))]
            self.error = min(max(worst, 1.0), MOST_ERROR)

    def _end(self, flight: _Flight, now_s: float) -> int:
        request = flight.request
        num_later = request.num_output_tokens - 1
        if self._tpot_ms is not None and num_later > 0 and flight.first_s is not None:
            self._paces.append((now_s - flight.first_s) * 1000 <= self._tpot_ms * num_later)
        self.forget(request.request_id)
        return num_later + 1


def _share(kept: deque[bool]) -> float:
    return sum(kept) / len(kept) if kept else 1.0
