"""Live numbers of a load on a terminal; silent elsewhere. Reads the load, touches nothing of it."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from threefold.bench.load import Load

# Twice a second: drawing shares the client's core with the measurement.
_INTERVAL_S = 0.5


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
    """The numbers behind the bar."""
    seconds = max(time.perf_counter() - load.start_s, 1e-9)
    tokens = sum(outcome.output_tokens for outcome in load.outcomes)
    num_failed = sum(1 for outcome in load.outcomes if outcome.error)
    failed = f" · {num_failed} failed" if num_failed else ""
    return f"{len(load.running)} running · {tokens / seconds:,.0f} tok/s{failed}"
