"""What a load came to, simulated or measured: one type, so that the two can be compared figure by figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threefold.metrics import EngineStats


@dataclass(slots=True)
class LoadResult:
    """What a load came to."""

    duration_s: float = 0.0
    """From the first arrival to the last token."""
    num_done: int = 0
    num_too_long: int = 0
    """Requests that could never fit into the KV cache; left out."""
    output_tokens: int = 0
    prompt_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    """Of answers with more than one token."""
    e2e_ms: list[float] = field(default_factory=list)
    full_s: float = 0.0
    """Closed loop: time in which every user waited for an answer; the tail, when users run out, is not in it."""
    full_tokens: int = 0
    """Output tokens that came in that time."""
    mean_running: float = 0.0
    """Requests in flight, queue included, averaged over time."""
    stats: EngineStats = field(default_factory=EngineStats)
    """The scheduler's own counters."""

    @property
    def output_rate(self) -> float:
        """Output tokens a second; of a closed loop, while all users were busy."""
        if self.full_s > 0.5 * self.duration_s:
            return self.full_tokens / self.full_s
        return self.output_tokens / self.duration_s if self.duration_s > 0 else 0.0

    def percentile(self, name: str, share: float) -> float:
        """Of ttft, tpot or e2e, ms; 0 where there is no sample."""
        values: list[float] = {"ttft": self.ttft_ms, "tpot": self.tpot_ms, "e2e": self.e2e_ms}[name]
        return float(np.percentile(values, share)) if values else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Figures for JSON."""
        spreads = {
            f"p{share}_{name}_ms": self.percentile(name, share)
            for name in ("ttft", "tpot", "e2e")
            for share in (50, 90, 99)
        }
        return {
            "duration_s": self.duration_s,
            "completed": self.num_done,
            "too_long": self.num_too_long,
            "output_throughput": self.output_rate,
            "request_throughput": self.num_done / self.duration_s if self.duration_s > 0 else 0.0,
            "mean_in_flight": self.mean_running,
            **spreads,
            "num_preemptions": self.stats.num_preemptions,
            "prefix_hit_rate": self.stats.prefix_hits / max(self.stats.prefix_queries, 1),
            "draft_tokens": self.stats.num_draft_tokens,
            "accepted_tokens": self.stats.num_accepted_tokens,
        }
