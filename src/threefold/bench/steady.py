"""The part of a load in which what was asked held: every user of a closed loop busy, or one rate offered throughout.

Ramp-up and tail dilute a whole run's figures; these stand beside them, under the same names with `steady_` in front.
Pure arithmetic on outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from threefold.bench.measure import METRICS, PERCENTILES, rate, samples_ms, spread
from threefold.bench.outcome import Outcome


class Window(NamedTuple):
    """A part of a load's time."""

    begin_s: float
    """On the outcomes' clock."""
    end_s: float
    """After it."""

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s


def closed_window(spans: Sequence[tuple[float, float]], concurrency: int) -> Window | None:
    """When every stream of a closed loop was busy.

    From the moment the last of the `concurrency` first requests was sent to the moment the first stream found nothing
    more to send.

    Args:
        spans: beginning and end of every request, failed ones among them; a request cut off ends when it was.
        concurrency: the streams.

    Returns:
        None when the load never filled the streams for any time.
    """
    if len(spans) < concurrency or not spans:
        return None
    starts = sorted(start for start, _ in spans)
    begin, last_start = starts[concurrency - 1], starts[-1]
    end = min((end for _, end in spans if end > last_start), default=last_start)
    return Window(begin, end) if end > begin else None


def open_window(outcomes: Sequence[Outcome]) -> Window | None:
    """When an open loop of one rate had as many requests in flight as that rate keeps there.

    From one median answer after the first request to the moment the last one was due. None when that is no time.
    """
    done = [outcome for outcome in outcomes if not outcome.error and outcome.due_s is not None]
    if not done:
        return None
    moments = [outcome.due_s for outcome in done if outcome.due_s is not None]
    begin = min(moments) + float(np.median([outcome.latency_s for outcome in done]))
    return Window(begin, max(moments)) if max(moments) > begin else None


def steady_figures(
    outcomes: Sequence[Outcome], window: Window | None, percentiles: Sequence[float] = PERCENTILES
) -> dict[str, Any]:
    """Figures within the window: throughput by what arrived in it, latencies of the requests wholly inside.

    A request that ends after the window took part of its time under a lighter load, so its latency is not the window's.
    """
    if window is None:
        return {"steady_duration": 0.0, "steady_completed": 0, "steady_output_throughput": None}
    done = [outcome for outcome in outcomes if not outcome.error]
    inside = [outcome for outcome in done if window.begin_s <= outcome.start_s and outcome.end_s <= window.end_s]
    ended = sum(window.begin_s < outcome.end_s <= window.end_s for outcome in done)
    figures: dict[str, Any] = {
        "duration": window.duration_s,
        "completed": len(inside),
        "request_throughput": rate(ended, window.duration_s),
        "output_throughput": rate(tokens_within(done, window), window.duration_s),
    }
    for name in METRICS:
        figures.update(spread(name, samples_ms(name, inside), percentiles))
    return {f"steady_{key}": value for key, value in figures.items()}


def tokens_within(done: Sequence[Outcome], window: Window) -> float:
    """Output tokens that arrived in the window; an answer's tokens are spread evenly over its pieces."""
    tokens = 0.0
    for outcome in done:
        if outcome.chunk_times_s:
            inside = sum(window.begin_s <= moment <= window.end_s for moment in outcome.chunk_times_s)
            tokens += outcome.output_tokens * inside / len(outcome.chunk_times_s)
    return tokens
