"""One cell of the envelope: what the runs of one load say. Pure arithmetic, no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from threefold.bench.compare import Comparison, Spread, compare
from threefold.metrics import EngineStats

ADAPTIVE_TARGET = 0.98
"""Adaptive over the best of off and every fixed K."""
GATED_TARGET = 0.99
"""Gated over off."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one variant did with one load, once."""

    tokens_per_s: float
    num_failed: int
    token_ids: list[list[int]]
    """Every answer, in the prompts' order."""
    stats: EngineStats
    kinds: dict[str, Any] = field(default_factory=dict)
    """What steps it was made of, by kind."""

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.token_ids))


class Cell(NamedTuple):
    """One load, and what each variant of one drafter made of it."""

    group: str
    concurrency: int
    method: str
    num_requests: int
    num_distinct: int
    runs: dict[str, list[Run]]
    """By variant, a run for each round; off comes first."""


def describe(cell: Cell) -> dict[str, Any]:
    """A cell's figures as plain data."""
    speeds = {name: [run.tokens_per_s for run in runs] for name, runs in cell.runs.items()}
    off = cell.runs["off"][0]
    rivals = [name for name in speeds if name not in ("gated", "adaptive")]
    best = max(rivals, key=lambda name: Spread.of(speeds[name]).median)
    all_runs = [run for runs in cell.runs.values() for run in runs]
    return {
        "group": cell.group,
        "concurrency": cell.concurrency,
        "method": cell.method,
        "num_requests": cell.num_requests,
        "num_distinct_prompts": cell.num_distinct,
        "num_failed": sum(run.num_failed for run in all_runs),
        "has_equal_tokens": len({run.output_tokens for run in all_runs}) == 1,
        "variants": {name: _describe_variant(runs, off) for name, runs in cell.runs.items()},
        "best": best,
        "adaptive_over_best": _judge(compare(speeds[best], speeds["adaptive"]), best, "adaptive", ADAPTIVE_TARGET),
        "adaptive_over_off": _judge(compare(speeds["off"], speeds["adaptive"]), "off", "adaptive", ADAPTIVE_TARGET),
        "gated_over_off": _judge(compare(speeds["off"], speeds["gated"]), "off", "gated", GATED_TARGET),
    }


def summary(cell: dict[str, Any]) -> str:
    """A described cell in one line."""
    verdict = cell["adaptive_over_best"]["verdict"]
    return f"{cell['group']} × {cell['concurrency']}, {cell['method']}, {cell['num_requests']} requests: {verdict}"


def _describe_variant(runs: list[Run], off: Run) -> dict[str, Any]:
    """Figures of one variant; lists are by round, differences are against the first run with drafts off."""
    speeds = [run.tokens_per_s for run in runs]
    spread = Spread.of(speeds)
    drafted = sum(run.stats.num_draft_tokens for run in runs)
    accepted = sum(run.stats.num_accepted_tokens for run in runs)
    return {
        "tokens_per_s": speeds,
        "median": spread.median,
        "low": spread.low,
        "high": spread.high,
        "output_tokens": [run.output_tokens for run in runs],
        "num_different": [_num_different(run, off) for run in runs],
        "num_steps": [run.stats.num_steps for run in runs],
        "steps_by_kind": [run.kinds for run in runs],
        "num_draft_tokens": drafted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "prefix_hits": [run.stats.prefix_hits for run in runs],
        "num_preemptions": [run.stats.num_preemptions for run in runs],
        "gain_ratio": [run.stats.speculation_gain_ratio for run in runs],
        "gain_error": [run.stats.speculation_gain_error for run in runs],
    }


def _num_different(run: Run, off: Run) -> int:
    return sum(1 for mine, theirs in zip(run.token_ids, off.token_ids, strict=True) if mine != theirs)


def _judge(comparison: Comparison, a_name: str, b_name: str, target: float) -> dict[str, Any]:
    """A comparison as plain data; `holds` says whether B reaches its share of A, or None when that is open."""
    interval = comparison.interval
    holds = None
    if interval is not None and (interval[0] >= target or interval[1] < target):
        holds = interval[0] >= target
    return {
        "ratio": comparison.ratio,
        "interval": interval,
        "is_different": comparison.is_different,
        "verdict": comparison.verdict(a_name, b_name),
        "target": target,
        "holds": holds,
    }
