"""One cell of predicted against measured, how sure the measurement is, and how often predictions held. Pure figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

BIG = 0.05
"""Effects above this must have the right sign."""
CLOSE = 0.15
"""A prediction this near is right in size."""
SURE = 2.0
"""Standard errors on each side of an interval."""


def scatter(rates: Sequence[float]) -> float | None:
    """Relative standard deviation of one run from what a variant's runs said; None = there was one."""
    return statistics.stdev(math.log(rate) for rate in rates) if len(rates) > 1 else None


def contrast(off: Sequence[float], on: Sequence[float], least_scatter: float) -> tuple[float, float | None]:
    """(change from one side's middle to the other's, half of its interval); no interval from one run a side.

    Args:
        off: rates of the runs.
        on: with the lever.
        least_scatter: of what was run beside; two runs of a variant may agree by chance.
    """
    change = statistics.median(on) / statistics.median(off) - 1
    scatters = scatter(off), scatter(on)
    if scatters[0] is None or scatters[1] is None:
        return change, None
    variance = sum(
        max(one or 0.0, least_scatter) ** 2 / len(runs) for one, runs in zip(scatters, (off, on), strict=True)
    )
    return change, (1 + change) * SURE * math.sqrt(variance)


@dataclass(frozen=True, slots=True)
class Cell:
    """One lever at one number of users."""

    lever: str
    users: int
    num_requests: int
    predicted: float
    """Change of output tokens a second when the lever is moved from off to on."""
    measured: float
    spread: float | None
    """Half of its interval, about two standard errors; None = one run has none."""
    predicted_rate: float
    """Output tokens a second without the lever."""
    measured_rate: float
    load: str = ""
    """Where there are several."""

    @property
    def sign(self) -> str:
        """Right or wrong; small where the measured effect is too small to count, unclear where it may be noise."""
        if abs(self.measured) <= BIG:
            return "small"
        if self.spread is not None and abs(self.measured) <= self.spread:
            return "unclear"
        return "right" if (self.predicted > 0) == (self.measured > 0) else "wrong"

    @property
    def is_sign_right(self) -> bool | None:
        """None where that cannot be said."""
        return {"right": True, "wrong": False}.get(self.sign)

    @property
    def measured_words(self) -> str:
        """The change, and what it may be off."""
        interval = "" if self.spread is None else f" ± {100 * self.spread:.0f}"
        return f"{self.measured:+.0%}{interval}"

    @property
    def is_close(self) -> bool:
        """True when the size is right."""
        return abs(self.predicted - self.measured) <= CLOSE

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "sign": self.sign, "is_sign_right": self.is_sign_right, "is_close": self.is_close}


def score(cells: Sequence[Cell]) -> list[str]:
    """How often sign and size were right, and how far speeds as such were off."""
    if not cells:
        return []
    signed = [cell for cell in cells if cell.is_sign_right is not None]
    num_right = sum(cell.sign == "right" for cell in signed)
    num_unclear = sum(cell.sign == "unclear" for cell in cells)
    close = sum(cell.is_close for cell in signed), sum(cell.is_close for cell in cells)
    off = [cell.predicted_rate / cell.measured_rate - 1 for cell in cells]
    return [
        f"sign right in {num_right} of {len(signed)} cells with a measured effect above {BIG:.0%}"
        + (f"; {num_unclear} more may be noise" if num_unclear else ""),
        f"size within {100 * CLOSE:.0f} points in {close[0]} of these {len(signed)}, and in {close[1]} of all "
        f"{len(cells)} cells",
        f"tokens/s without the lever: predicted {statistics.median(off):+.0%} off in the middle, from {min(off):+.0%} "
        f"to {max(off):+.0%}",
    ]
