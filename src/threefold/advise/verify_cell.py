"""One cell of predicted against measured, and how often predictions held. Pure figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

BIG = 0.05
"""Effects above this must have the right sign."""
CLOSE = 0.15
"""A prediction this near is right in size."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One lever at one number of users."""

    lever: str
    users: int
    num_requests: int
    predicted: float
    """Change of output tokens a second when the lever is moved from off to on."""
    measured: float
    spread: float
    """Half the distance of the measured changes' extremes."""
    predicted_rate: float
    """Output tokens a second without the lever."""
    measured_rate: float
    load: str = ""
    """Where there are several."""

    @property
    def is_sign_right(self) -> bool | None:
        """None where the measured effect is too small to have one."""
        if abs(self.measured) <= BIG:
            return None
        return (self.predicted > 0) == (self.measured > 0)

    @property
    def is_close(self) -> bool:
        """True when the size is right."""
        return abs(self.predicted - self.measured) <= CLOSE

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "is_sign_right": self.is_sign_right, "is_close": self.is_close}


def score(cells: Sequence[Cell]) -> list[str]:
    """How often sign and size were right, and how far speeds as such were off."""
    if not cells:
        return []
    signed = [cell.is_sign_right for cell in cells if cell.is_sign_right is not None]
    close = sum(cell.is_close for cell in cells)
    off = [cell.predicted_rate / cell.measured_rate - 1 for cell in cells]
    return [
        f"sign right in {sum(signed)} of {len(signed)} cells with a measured effect above {BIG:.0%}",
        f"size within {100 * CLOSE:.0f} points in {close} of {len(cells)} cells",
        f"tokens/s without the lever: predicted {statistics.median(off):+.0%} off in the middle, from {min(off):+.0%} "
        f"to {max(off):+.0%}",
    ]
