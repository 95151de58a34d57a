"""Live numbers of a load on a terminal; silent elsewhere. Reads the load, touches nothing of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from threefold.bench.load import Load
from threefold.bench.outcome import Outcome

# Twice a second: drawing shares the client's core with the measurement.
_INTERVAL_S = 0.5
_WINDOW_S = 5.0
"""Tokens a second are those of the last few."""
_LATEST = 50
"""Latencies are medians over the last answers."""


async def show_progress(load: Load, num_prompts: int) -> None:
    """Draw until cancelled; returns at once when stderr is no terminal."""
    if not sys.stderr.isatty():
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=num_prompts)
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_INTERVAL_S)
                progress.update(task, completed=len(load.outcomes), description=describe(load), refresh=True)
        progress.update(task, completed=len(load.outcomes), description=describe(load), refresh=True)


def describe(load: Load) -> str:
    """The numbers behind the bar: how many run, tokens a second now, TTFT and TPOT of the latest answers."""
    done = [outcome for outcome in load.outcomes[-_LATEST:] if not outcome.error]
    shown = [f"{len(load.running)} running", f"{recent_tokens_per_s(load, time.perf_counter()):,.0f} tok/s"]
    if done:
        shown.append(f"TTFT {_median_ms(done, lambda outcome: outcome.ttft_s)}")
        shown.append(f"TPOT {_median_ms(done, lambda outcome: outcome.tpot_s)}")
    num_failed = sum(1 for outcome in load.outcomes if outcome.error)
    return " · ".join([*shown, f"{num_failed} failed"] if num_failed else shown)


def recent_tokens_per_s(load: Load, now_s: float) -> float:
    """Output tokens a second over the last few seconds; a running answer's pieces count as one token each."""
    since = max(now_s - _WINDOW_S, load.start_s)
    tokens = 0.0
    for outcome in [*load.outcomes[-10 * _LATEST :], *load.running.values()]:
        times = outcome.chunk_times_s
        if times and times[-1] >= since:
            inside = sum(moment >= since for moment in times)
            tokens += inside * max(outcome.output_tokens, len(times)) / len(times)
    return tokens / max(now_s - since, 1e-9)


def _median_ms(done: Sequence[Outcome], latency_s: Callable[[Outcome], float]) -> str:
    return f"{median(map(latency_s, done)) * 1e3:,.1f} ms"
