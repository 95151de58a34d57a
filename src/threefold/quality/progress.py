"""How far a comparison is, for whoever waits: a line that redraws itself on a terminal, a line a tenth elsewhere."""

from __future__ import annotations

import sys
import time

from threefold.quality.readings import Readings
from threefold.quality.words import running

_REDRAW_S = 0.2


class Ticker:
    """Shows progress on stderr."""

    def __init__(self, num_pieces: int) -> None:
        self._num_pieces = num_pieces
        self._is_terminal = sys.stderr.isatty()
        self._shown_s = 0.0
        self._shown_tenth = 0

    def __call__(self, num_done: int, readings: Readings | None) -> None:
        """Take note of the pieces done and, once there are any, of the figures so far."""
        is_last = num_done == self._num_pieces
        tenth = 10 * num_done // self._num_pieces
        is_due = time.monotonic() - self._shown_s >= _REDRAW_S if self._is_terminal else tenth > self._shown_tenth
        if is_due or is_last:
            figures = "" if readings is None else f": {running(readings.means)}"
            self._show(f"{num_done} of {self._num_pieces} pieces{figures}", is_last)
            self._shown_s, self._shown_tenth = time.monotonic(), 0 if is_last else tenth

    def _show(self, line: str, is_last: bool) -> None:
        if self._is_terminal:
            print(f"\r\x1b[K{line}", end="\n" if is_last else "", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
