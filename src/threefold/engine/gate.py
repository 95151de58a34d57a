"""How many answers may be in flight, and when it is sensible to come back. Arithmetic on a clock that is passed in."""

from __future__ import annotations

from threefold.errors import OverloadedError

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
SMOOTHING = 0.1  # weight of the newest interval between two ends


class Gate:
    """Lets answers in while fewer than `max_running + max_waiting` are in flight, and watches how fast they end."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._last_end_s: float | None = None
        self._interval_s: float | None = None  # between two ends, smoothed

    def check(self, num_in_flight: int) -> None:
        """Raise OverloadedError when as many wait as may."""
        num_waiting = num_in_flight - self._max_running
        if num_waiting >= self._max_waiting:
            raise OverloadedError(
                f"{num_waiting} requests wait already, at most {self._max_waiting} may",
                retry_after_s=self.retry_after_s(num_waiting),
            )

    def observe_end(self, now_s: float) -> None:
        """An answer ended."""
        if self._last_end_s is not None:
            interval_s = now_s - self._last_end_s
            old_s = interval_s if self._interval_s is None else self._interval_s
            self._interval_s = old_s + SMOOTHING * (interval_s - old_s)
        self._last_end_s = now_s

    def retry_after_s(self, num_waiting: int) -> float:
        """Seconds until those who wait now will have had their turn, within [1, 60]."""
        interval_s = MIN_RETRY_S if self._interval_s is None else self._interval_s
        return min(max(num_waiting * interval_s, MIN_RETRY_S), MAX_RETRY_S)
