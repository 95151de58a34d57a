"""Latency targets: what a user wants of nine requests in ten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threefold.advise.result import LoadResult
from threefold.errors import ConfigError

SHARE = 90.0
"""Percentile that must meet a target."""
NAMES = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e", "e2el": "e2e"}


def parse_targets(terms: Sequence[str]) -> dict[str, float]:
    """Read `ttft:500,tpot:50`, milliseconds; words may be joined by commas or stand apart.

    Raises:
        ConfigError: an unknown name, or no number above 0.
    """
    targets: dict[str, float] = {}
    for term in (part for word in terms for part in word.split(",") if part):
        name, _, value = term.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in NAMES or not 0 < limit < 1e9:
            raise ConfigError(f"--slo {term}: wants ttft:MS, tpot:MS or e2e:MS, milliseconds above 0")
        targets[NAMES[name]] = limit
    return targets


def missed(result: LoadResult, targets: Mapping[str, float]) -> list[str]:
    """The targets that the load breaks, each with what it came to."""
    said = []
    for name, limit in targets.items():
        value = result.percentile(name, SHARE)
        if value > limit:
            said.append(f"{name} p90 {value:.0f} ms > {limit:g} ms")
    return said
