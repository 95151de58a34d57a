"""`bench serve` at several concurrencies or rates in turn, and the knee: where more of it brings longer waits only.

Every point is a whole result of `bench serve`. Knows nothing about servers: whoever calls says how a point is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from threefold.bench.load_options import LoadOptions
from threefold.bench.report import WIDTH, drawn_table
from threefold.bench.serve import last_words
from threefold.bench.serve_options import ArrivalOptions, SweepOptions
from threefold.errors import ConfigError

SWEEP = "sweep"
"""The result's key `benchmark`."""
ATTAINED = 0.9
"""Share of requests that must keep a limit of --goodput."""


class Point(NamedTuple):
    """What is measured at one point."""

    load: LoadOptions
    arrival: ArrivalOptions
    shown: str


class Knee(NamedTuple):
    """Where it lies."""

    at: float | None
    """Users or requests a second; None when no point keeps the limits, or throughput rises up to the last one."""
    reason: str


def sweep_points(asked: SweepOptions, load: LoadOptions, arrival: ArrivalOptions) -> list[Point]:
    """One point for a plain run, else one for every concurrency or rate, by size.

    Raises:
        ConfigError: both have several values.
    """
    users, rates = sorted(set(asked.concurrency)), sorted(set(asked.request_rate))
    if len(users) > 1 and len(rates) > 1:
        raise ConfigError("a sweep goes through --concurrency or through --request-rate; give one value of the other")
    points = []
    all_users: list[int | None] = [*users] or [load.concurrency]
    all_rates: list[float | None] = [*rates] or [arrival.request_rate]
    for count in all_users:
        for rate in all_rates:
            shown = (
                f"{rate:g} requests/s" if rate is not None and len(rates) > 1 else f"{count} user{'s' * (count != 1)}"
            )
            points.append(Point(replace(load, concurrency=count), replace(arrival, request_rate=rate), shown))
    return points


def bench_sweep(
    points: Sequence[Point], send: Callable[[Point], dict[str, Any]], *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the points in turn; what ends it early is in the result, with the points that were measured.

    Args:
        points: by size, two or more.
        send: measures one.
        say: takes a line for each.
    """
    runs: list[dict[str, Any]] = []
    ended = ""
    for number, point in enumerate(points, start=1):
        try:
            run = send(point)
        except KeyboardInterrupt:
            ended = "stopped by Ctrl-C"
            break
        runs.append(run)
        ended = last_words(run)
        say(f"[{number}/{len(points)}] {point.shown}: {ended or run_summary(run)}")
        if run.get("interrupted") or run.get("server_gone"):
            break
    knee = find_run_knee(runs)
    first = runs[0] if runs else {}
    return {
        "benchmark": SWEEP,
        **{key: first.get(key) for key in ("endpoint_type", "label", "model_id", "url", "dataset", "group")},
        "request_rate": SWEEP,
        "completed": sum(run["completed"] for run in runs),
        "is_whole": len(runs) == len(points) and not ended,
        "ended": ended,
        "knee": knee._asdict() if knee is not None else None,
        "runs": runs,
    }


def place_of(run: Mapping[str, Any]) -> float | None:
    """Where a run stands on the axis: users of a closed loop, requests a second of an open one; None = a trace."""
    rate = run.get("request_rate")
    if rate == "inf":
        users = run.get("max_concurrency")
        return float(users) if users is not None else None
    return float(rate) if isinstance(rate, int | float) else None


def is_open_loop(run: Mapping[str, Any]) -> bool:
    """True when requests came at a rate, whether or not answers had come."""
    return run.get("request_rate") != "inf"


def find_run_knee(runs: Sequence[Mapping[str, Any]]) -> Knee | None:
    """The knee by the advisor's rule; None where fewer than two runs with places say anything."""
    from threefold.advise.knee import KneePoint, find_knee

    known = [(place, run) for run in runs if (place := place_of(run)) is not None and run["completed"]]
    placed = sorted(known, key=lambda pair: pair[0])
    if len(placed) < 2:
        return None
    points = [KneePoint(_plain(place), _throughput(run), 0.0, 0.0, tuple(broken_limits(run))) for place, run in placed]
    knee, reason = find_knee(points)
    if knee is None:
        return Knee(None, reason)
    if knee is points[-1]:
        return Knee(None, f"throughput still rises at {knee.max_num_seqs:g}, the last point measured")
    return Knee(float(knee.max_num_seqs), reason)


def broken_limits(run: Mapping[str, Any]) -> list[str]:
    """Limits of --goodput that too few requests kept."""
    limits = run.get("goodput_limits_ms") or {}
    shares = run.get("goodput_attainment") or {}
    return [f"only {share:.0%} within {name} {limits[name]:g} ms" for name, share in shares.items() if share < ATTAINED]


def run_summary(run: Mapping[str, Any]) -> str:
    """A run in one line."""
    said = [f"{_throughput(run):,.1f} tokens/s"]
    said += [
        f"{word} {run[key]:,.1f} ms"
        for word, key in (("TTFT", "median_ttft_ms"), ("TPOT", "median_tpot_ms"))
        if run.get(key) is not None
    ]
    return ", ".join(said)


def sweep_lines(result: Mapping[str, Any]) -> list[str]:
    """The sweep for a terminal."""
    columns = {
        "tokens/s": "output_throughput", "requests/s": "request_throughput", "TTFT p50": "median_ttft_ms",
        "p99": "p99_ttft_ms", "TPOT p50": "median_tpot_ms", "p99 ": "p99_tpot_ms", "failed": "failed",
    }  # fmt: skip
    runs = result["runs"]
    name = "requests/s asked" if any(is_open_loop(run) for run in runs) else "users"
    rows = [[_cell(place_of(run)), *(_cell(run.get(key)) for key in columns.values())] for run in runs]
    lines = [" Sweep Result ".center(WIDTH, "="), *drawn_table([name, *columns], rows, num_left=0)]
    knee = result["knee"]
    if knee is not None:
        at = f"{knee['at']:g} {name}" if knee["at"] is not None else "none"
        lines.append(f"knee: {at}; {knee['reason']}")
    return [*lines, "=" * WIDTH]


def _throughput(run: Mapping[str, Any]) -> float:
    """While what was asked held, where that is known."""
    return float(run.get("steady_output_throughput") or run.get("output_throughput") or 0.0)


def _plain(place: float) -> Any:
    """A whole number without its point, for messages; a rate as it is."""
    return int(place) if place == int(place) else place


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) and value != int(value) else f"{value:,.0f}"
