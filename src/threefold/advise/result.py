"""What a load came to, simulated or measured: one type, so that the two can be compared figure by figure."""

from __future__ import annotations

import math
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
    num_shed: int = 0
    """Requests refused for the sake of latency targets."""
    output_tokens: int = 0
    prompt_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    """Of answers with more than one token."""
    e2e_ms: list[float] = field(default_factory=list)
    full_s: float = 0.0
    """Closed loop: time in which every user waited for an answer; the tail, when users run out, is not in it."""
    full_tokens: float = 0.0
    """Output tokens of answers that were over in that time, and of one that went on its share: as much of it as of its
    time. (Tokens that came by then would leave out what had been spent on its prompt: up to a batch of prompts.)"""
    full_until_s: float = -math.inf
    """When that was over."""
    busy_s: float = 0.0
    """Time in flight, queue included, of all requests together."""
    stats: EngineStats = field(default_factory=EngineStats)
    """The scheduler's own counters."""

    def take_step(self, step_s: float, num_open: int, now_s: float, *, is_full: bool) -> None:
        """A step is over; answers that ended with it are told afterwards.

        Args:
            step_s: its time.
            num_open: requests in flight during it.
            now_s: seconds of the clock of `take_answer`.
            is_full: every user of a closed loop waited for an answer; once that is over, it is for good.
        """
        self.busy_s += step_s * num_open
        if is_full:
            self.full_s += step_s
            self.full_until_s = now_s

    def take_answer(self, start_s: float, first_s: float, end_s: float, num_output: int, num_prompt: int = 0) -> None:
        """An answer is over: when it was wanted, when its first token came and its last, seconds of one clock."""
        self.num_done += 1
        self.output_tokens += num_output
        self.prompt_tokens += num_prompt
        self.ttft_ms.append((first_s - start_s) * 1000)
        self.e2e_ms.append((end_s - start_s) * 1000)
        if num_output > 1:
            self.tpot_ms.append((end_s - first_s) * 1000 / (num_output - 1))
        if end_s <= self.full_until_s:
            self.full_tokens += num_output
        elif start_s < self.full_until_s:
            self.full_tokens += num_output * (self.full_until_s - start_s) / (end_s - start_s)

    def add(self, other: LoadResult) -> None:
        """The same load once more: what it came to counts too. The scheduler's counters stay those of the first."""
        for one in ("duration_s", "num_done", "num_too_long", "num_shed", "output_tokens", "prompt_tokens", "full_s",
                    "full_tokens", "busy_s", "ttft_ms", "tpot_ms", "e2e_ms"):  # fmt: skip
            setattr(self, one, getattr(self, one) + getattr(other, one))

    @property
    def mean_running(self) -> float:
        """Requests in flight, queue included, averaged over time."""
        return self.busy_s / self.duration_s if self.duration_s > 0 else 0.0

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
            "shed": self.num_shed,
            "output_throughput": self.output_rate,
            "request_throughput": self.num_done / self.duration_s if self.duration_s > 0 else 0.0,
            "mean_in_flight": self.mean_running,
            **spreads,
            "num_preemptions": self.stats.num_preemptions,
            "prefix_hit_rate": self.stats.prefix_hits / max(self.stats.prefix_queries, 1),
            "draft_tokens": self.stats.num_draft_tokens,
            "accepted_tokens": self.stats.num_accepted_tokens,
        }
