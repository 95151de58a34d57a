"""How long each part of an engine's start takes; a part that lasts is announced, so that whoever waits sees it work.

Knows nothing about what the parts do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from threefold.engine.resolve import Reason

log = logging.getLogger("threefold.start")

PATIENCE_S = 2.0
"""A part that takes longer is announced while it lasts."""
LEAST_S = 0.05


def _say(what: str) -> None:
    log.info("%s …", what)


class StartClock:
    """Times a start, part by part.

    Args:
        before_s: what the process took before this, to import what it needs.
        say: announces a part.
        patience_s: when.
    """

    def __init__(
        self, before_s: float = 0.0, say: Callable[[str], None] = _say, patience_s: float = PATIENCE_S
    ) -> None:
        self._parts = {"imports": before_s} if before_s else {}
        self._say = say
        self._patience_s = patience_s

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """Time what is done within."""
        timer = threading.Timer(self._patience_s, self._say, (what,))
        timer.daemon = True
        timer.start()
        began_s = time.perf_counter()
        try:
            yield
        finally:
            timer.cancel()
            self._parts[what] = self._parts.get(what, 0.0) + time.perf_counter() - began_s

    def reason(self) -> Reason:
        """The whole, and the parts that took any time worth a word."""
        parts = ", ".join(f"{what} {seconds:.1f}" for what, seconds in self._parts.items() if seconds >= LEAST_S)
        return Reason("start", f"{sum(self._parts.values()):.1f} s", parts)
