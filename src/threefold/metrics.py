"""What the engine counts, as plain objects; the server turns them into Prometheus series."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class SloStats:
    """What an engine with latency targets makes of them."""

    ttft_target_ms: float | None = None
    """Target of the first token; None = none."""
    tpot_target_ms: float | None = None
    """Target of the mean time between tokens; None = none."""
    num_shed: int = 0
    """Requests refused because their first token would have come too late."""
    predicted_ttft_ms: float = 0.0
    """First token forecast for the last request that came, the forecast's error included (gauge)."""
    running_limit: int = 0
    """Running requests that the target allows; 0 = not known yet, or none asked (gauge)."""
    step_error: float = 1.0
    """Real over predicted time of steps, as nine runs of ten keep it (gauge)."""
    ttft_error: float = 1.0
    """Real over forecast first tokens, 98th percentile (gauge)."""
    ttft_attained: float = 1.0
    """Of the last answers, those whose first token kept the target (gauge)."""
    tpot_attained: float = 1.0
    """Of the last answers, those whose pace kept the target (gauge)."""


@dataclass(slots=True)
class EngineStats:
    """A snapshot of the engine's counters since its start, and of its gauges now."""

    num_running: int = 0
    """Requests running (gauge)."""
    num_waiting: int = 0
    """Requests waiting (gauge)."""
    num_blocks: int = 0
    """KV blocks in all (gauge)."""
    num_held_blocks: int = 0
    """KV blocks held by running requests (gauge)."""
    num_cached_blocks: int = 0
    """KV blocks that are free but findable by hash (gauge)."""
    num_steps: int = 0
    """Steps run."""
    step_s: float = 0.0
    """Seconds spent in steps."""
    schedule_s: float = 0.0
    """Of them, planning and committing."""
    prompt_tokens_computed: int = 0
    """Prompt tokens whose KV was computed, recomputation after preemption included."""
    generated_tokens: int = 0
    """Committed output tokens."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Of them, found."""
    num_preemptions: int = 0
    """Requests sent back to the queue for want of blocks."""
    recomputed_tokens: int = 0
    """Tokens whose KV was lost to preemption."""
    num_request_errors: int = 0
    """Requests ended by a fault of their own."""
    num_drafts: int = 0
    """Rows and steps with at least one draft verified."""
    num_draft_tokens: int = 0
    """Drafts verified."""
    num_accepted_tokens: int = 0
    """Drafts accepted."""
    accepted_per_position: list[int] = field(default_factory=list)
    """Accepted drafts at the 1st, 2nd, … position."""
    num_draft_faults: int = 0
    """Drafters that raised or proposed nonsense."""
    speculation_gain_ratio: float = 1.0
    """Estimated tokens per second with drafts over without, lately (gauge)."""
    speculation_gain_error: float = 0.0
    """Standard error of that estimate (gauge)."""
    gain_by: dict[str, float] = field(default_factory=dict)
    """speculation_gain_ratio of each drafter's drafts alone (gauge)."""
    drafted_by: dict[str, int] = field(default_factory=dict)
    """Drafts verified, by drafter."""
    accepted_by: dict[str, int] = field(default_factory=dict)
    """Of them, accepted."""
    iteration_tokens: dict[int, int] = field(default_factory=dict)
    """Steps by number of tokens, bucketed to the next power of two."""
    slo: SloStats | None = None
    """Latency targets; None = none are held."""


class Histogram:
    """Counts of values by bucket, and their sum.

    Attributes:
        bounds: upper ends of the buckets, rising; a value equal to a bound belongs to its bucket.
        counts: values in each bucket; one more than bounds, the last for all that is greater.
        total: sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
