"""Flags of `bench serve` and `bench compare` beyond what is sent: when it is sent, and how the figures are kept."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.bench.measure import METRICS, PERCENTILES
from threefold.flags.flag import Flag
from threefold.flags.values import choice, number, one, switch, text, words


@dataclass(frozen=True, slots=True)
class ArrivalOptions:
    """When requests are sent."""

    request_rate: float | None = None
    """Requests a second (open loop); inf = none waits for a moment; None = a trace's moments, else inf."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of intervals: 1 = Poisson arrivals, below burstier, inf = even."""
    ramp_up_strategy: str | None = None
    """linear or exponential: the rate changes from request to request."""
    ramp_up_start_rps: float | None = None
    """Rate at the first request."""
    ramp_up_end_rps: float | None = None
    """Rate at the last one."""
    speedup: float = 1.0
    """A trace is replayed so many times as fast."""


@dataclass(frozen=True, slots=True)
class KeepOptions:
    """Which figures are shown, and where they go."""

    percentile_metrics: tuple[str, ...] = METRICS
    """Latencies in the table."""
    metric_percentiles: tuple[float, ...] = PERCENTILES
    """Percentiles of each."""
    save_result: bool = False
    """Write a JSON file with a name made from the run."""
    save_detailed: bool = False
    """With figures of each request."""
    result_dir: str | None = None
    """Folder for it."""
    result_filename: str | None = None
    """Name for it."""
    metadata: tuple[str, ...] = ()
    """Further keys of the result, K=V."""


def _metrics(value: str) -> tuple[str, ...]:
    return tuple(choice(*METRICS)(part) for part in words(text(value)))


def _percentiles(value: str) -> tuple[float, ...]:
    return tuple(number(0, 100)(part) for part in words(text(value)))


_RATE = number(0, is_low_open=True)

ARRIVAL_FLAGS = (
    Flag("request-rate", "arrival.request_rate", _RATE,
         "requests a second, sent whether or not answers come (open loop); inf = as concurrency allows", metavar="RPS"),
    Flag("burstiness", "arrival.burstiness", _RATE,
         "shape of the gamma intervals: 1 = Poisson (default), below 1 burstier, inf = even", metavar="SHAPE"),
    Flag("ramp-up-strategy", "arrival.ramp_up_strategy", choice("linear", "exponential"),
         "the rate goes from start to end over the requests: linear or exponential", metavar="HOW"),
    Flag("ramp-up-start-rps", "arrival.ramp_up_start_rps", _RATE, "rate at the first request", metavar="RPS"),
    Flag("ramp-up-end-rps", "arrival.ramp_up_end_rps", _RATE, "rate at the last request", metavar="RPS"),
    Flag("speedup", "arrival.speedup", _RATE, "replay a trace so many times as fast (1)", metavar="F"),
)  # fmt: skip

KEEP_FLAGS = (
    Flag("percentile-metrics", "keep.percentile_metrics", _metrics,
         f"latencies in the table: {','.join(METRICS)} (all)", metavar="LIST"),
    Flag("metric-percentiles", "keep.metric_percentiles", _percentiles, "percentiles of each (50,90,95,99)",
         metavar="LIST"),
    Flag("save-result", "keep.save_result", switch, "write a JSON file named after the run", kind="switch"),
    Flag("save-detailed", "keep.save_detailed", switch, "with the figures of each request in it", kind="switch"),
    Flag("result-dir", "keep.result_dir", text, "folder for it", metavar="FOLDER"),
    Flag("result-filename", "keep.result_filename", text, "name for it", metavar="FILE"),
    Flag("metadata", "keep.metadata", one, "further keys of the result, NAME=VALUE", kind="list", metavar="PAIR"),
)  # fmt: skip
