"""Stands where captured graphs do: what a card would record and replay is simply done again."""

from __future__ import annotations

from collections.abc import Callable


class FakeCapture:
    """Implements runner.graphs.Capture without a card.

    Attributes:
        num_captured: graphs so far.
        num_replays: launches of any of them.
    """

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replays = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work once, as warming up does; the answer does it again."""
        self.num_captured += 1
        work()

        def replay() -> None:
            self.num_replays += 1
            work()

        return replay

    def end(self) -> int:
        """Memory that a megabyte stands for."""
        return 1 << 20
