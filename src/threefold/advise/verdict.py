"""What is said of a lever: on, off, no difference or cannot say; by how much, how sure, and where it turns.

Pure rules over figures. Knows nothing about how they came about.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

LEAST_GAIN = 0.02
"""Less is no difference: nobody could measure it."""
LEAST_ESTIMATE = 0.05
"""The same for what was not measured."""
ON, OFF, SAME, UNKNOWN = "on", "off", "no difference", "cannot say"


@dataclass(slots=True)
class LoadGain:
    """What a lever does at one number of users."""

    concurrency: int
    rate_rps: float
    """Requests a second that so many users make without the lever."""
    change: float
    """Of output tokens a second; 0.1 = 10 % more."""
    ttft_change: float
    """Of the median."""
    tpot_change: float
    """Of the median."""


@dataclass(slots=True)
class Verdict:
    """One lever's."""

    lever: str
    verdict: str
    setting: str = ""
    """What to type."""
    change: float | None = None
    """Of output tokens a second at the load's own concurrency."""
    low: float | None = None
    high: float | None = None
    """Where the change lies, as far as sampling of the load and the curve's error tell."""
    ttft_change: float | None = None
    tpot_change: float | None = None
    flips: str = ""
    """The users or rate at which the verdict turns."""
    costs: str = ""
    reason: str = ""
    is_estimate: bool = False
    """True when it rests on assumptions or on the curve's split, not on readings alone."""
    by_load: list[LoadGain] = field(default_factory=list)
    quality: str = ""
    """What it does to answers, as far as that is measured."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def users_said(count: int) -> str:
    """1 user, 2 users …"""
    return f"{count} user{'' if count == 1 else 's'}"


def interval(changes: Sequence[float], error: float = 0.0) -> tuple[float, float, float]:
    """(middle, low, high) of a change from its values over resamples; two standard deviations each way.

    Args:
        changes: relative changes.
        error: further standard error, relative to what is multiplied.
    """
    logs = [math.log(max(1.0 + change, 1e-6)) for change in changes]
    mean = sum(logs) / len(logs)
    variance = sum((value - mean) ** 2 for value in logs) / max(len(logs) - 1, 1)
    reach = 2.0 * math.sqrt(variance + error * error)
    return math.exp(mean) - 1, math.exp(mean - reach) - 1, math.exp(mean + reach) - 1


def judged(change: float, low: float, high: float, least: float = LEAST_GAIN) -> str:
    """On when it surely helps, off when it surely hurts, else no difference."""
    if low > 0 and change >= least:
        return ON
    if high < 0 and change <= -least:
        return OFF
    return SAME


def _pays(change: float, was: bool) -> bool:
    """Whether it pays; what is close to the limit stays as it was, or noise would turn it to and fro."""
    if abs(change - LEAST_GAIN) < 0.5 * LEAST_GAIN:
        return was
    return change > LEAST_GAIN


def flip_point(gains: Sequence[LoadGain]) -> str:
    """Where gains, by rising concurrency, pass from paying to not paying or back; "" = nowhere."""
    turns = []
    was = bool(gains) and gains[0].change >= LEAST_GAIN
    for before, after in itertools.pairwise(gains):
        now = _pays(after.change, was)
        if was == now:
            continue
        share = min(max((LEAST_GAIN - before.change) / (after.change - before.change), 0.0), 1.0)
        users = before.concurrency * (after.concurrency / before.concurrency) ** share
        rate = before.rate_rps + share * (after.rate_rps - before.rate_rps)
        word = "stops to pay" if was else "begins to pay"
        turns.append(f"{word} at about {users_said(round(users))} ({rate:.2g} requests/s)")
        was = now
    if turns:
        return "; ".join(turns)
    if not gains:
        return ""
    always = gains[0].change >= LEAST_GAIN
    word, first, last = "pays" if always else "never pays", gains[0].concurrency, gains[-1].concurrency
    return f"{word} with {users_said(first)}" if first == last else f"{word} from {first} to {users_said(last)}"
