"""Whether there is time to look ahead: while steps overlap, as long as the host would only wait for the device.

With a small model and many rows the host is what steps wait for, and whatever it does besides makes them longer. How
long it waits is known, so nothing need be assumed about machines or models.
"""

from __future__ import annotations

ROW_MS = 0.02
"""A guess at what looking takes a row, until it was measured."""
MARGIN = 2.0
"""Times that looking must fit into the wait: steps are not all alike."""
MEMORY_STEPS = 16.0
"""Steps over which times are averaged."""


class Sight:
    """Weighs the wait against the look."""

    def __init__(self) -> None:
        self._slack_ms = 0.0  # that the host would wait if it never looked
        self._row_ms = ROW_MS
        self._looked_ms = 0.0  # behind the step before

    def waited(self, ms: float) -> None:
        """The host waited so long for the step that it is about to look at."""
        self._slack_ms = _toward(self._slack_ms, ms + self._looked_ms)
        self._looked_ms = 0.0

    def has_time(self, num_rows: int) -> bool:
        """Whether looking at so many rows would hold nothing up."""
        return self._slack_ms >= MARGIN * self._row_ms * num_rows

    def looked(self, num_rows: int, ms: float) -> None:
        """It took that long."""
        self._looked_ms = ms
        self._row_ms = _toward(self._row_ms, ms / num_rows)


def _toward(average: float, reading: float) -> float:
    return average + (reading - average) / MEMORY_STEPS
