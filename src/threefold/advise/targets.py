"""Latency targets: what a user wants of nine requests in ten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threefold.advise.result import LoadResult
from threefold.flags import targets

SHARE = 90.0
"""Percentile that must meet a target."""
NAMES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "e2el": "e2e"}


def parse_targets(terms: Sequence[str]) -> dict[str, float]:
    """Read `ttft:500,tpot:50`, milliseconds; words may be joined by commas or stand apart.

    Raises:
        ConfigError: an unknown name, or no number above 0.
    """
    return targets.parse_targets(terms, NAMES, "--slo")


def missed(result: LoadResult, limits: Mapping[str, float]) -> list[str]:
    """The targets that the load breaks, each with what it came to."""
    said = []
    for name, limit in limits.items():
        value = result.percentile(name, SHARE)
        if value > limit:
            said.append(f"{name} p90 {value:.0f} ms > {limit:g} ms")
    return said
