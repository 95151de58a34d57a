"""How much a step may hold after one that the device had no memory for. Knows numbers only."""

from __future__ import annotations

RECOVERY_STEPS = 64
"""Good steps from one token and row to all that was configured; fewer from higher up."""


class Backoff:
    """Limits that give way at once and come back slowly, so that what failed is not tried again at once.

    Args:
        max_tokens: tokens a step, as configured.
        max_rows: running requests, as configured.

    Attributes:
        num_tokens: tokens a step, for now; never fewer than there are running requests.
        num_rows: running requests, for now.
    """

    def __init__(self, max_tokens: int, max_rows: int) -> None:
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self.num_tokens = max_tokens
        self.num_rows = max_rows

    def shrink(self, num_tokens: int, num_rows: int) -> None:
        """Allow no more than this for now."""
        self.num_rows = min(self.num_rows, max(num_rows, 1))
        self.num_tokens = min(self.num_tokens, max(num_tokens, self.num_rows))

    def recover(self) -> None:
        """A step went well: allow a little more."""
        if self.num_tokens < self._max_tokens or self.num_rows < self._max_rows:
            self.num_tokens = min(self._max_tokens, self.num_tokens + -(-self._max_tokens // RECOVERY_STEPS))
            self.num_rows = min(self._max_rows, self.num_tokens, self.num_rows + -(-self._max_rows // RECOVERY_STEPS))
