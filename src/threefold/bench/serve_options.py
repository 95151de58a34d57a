"""Flags of `bench serve` and `bench compare` beyond what is sent: when it is sent, and how the figures are kept.

`bench serve` takes several concurrencies or rates, which are measured one after the other: a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

from threefold.bench.load_options import HTML_HELP
from threefold.bench.measure import METRICS, PERCENTILES
from threefold.flags.flag import Flag
from threefold.flags.values import choice, integer, number, one, output_file, switch, text, words


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
    html: str | None = None
    """File for a page with curves."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What a sweep goes through; one value of each is a plain run."""

    concurrency: tuple[int, ...] = ()
    """Requests at once."""
    request_rate: tuple[float, ...] = ()
    """Requests a second."""


def _metrics(value: str) -> tuple[str, ...]:
    return tuple(choice(*METRICS)(part) for part in words(text(value)))


def _percentiles(value: str) -> tuple[float, ...]:
    return tuple(number(0, 100)(part) for part in words(text(value)))


_RATE = number(0, is_low_open=True)


def _counts(value: str) -> tuple[int, ...]:
    return tuple(integer(1, 65536)(part) for part in words(text(value)))


def _rates(value: str) -> tuple[float, ...]:
    return tuple(_RATE(part) for part in words(text(value)))


_RATE_HELP = "requests a second, sent whether or not answers come (open loop); inf = as concurrency allows"
RATE_FLAG = Flag("request-rate", "arrival.request_rate", _RATE, _RATE_HELP, metavar="RPS")
SWEEP_FLAGS = (
    Flag("concurrency", "sweep.concurrency", _counts, "requests at once (16); several are measured in turn: 1 4 16",
         kind="list", aliases=("--max-concurrency",), metavar="N"),
    Flag("request-rate", "sweep.request_rate", _rates, f"{_RATE_HELP}; several are measured in turn", kind="list",
         metavar="RPS"),
)  # fmt: skip

ARRIVAL_FLAGS = (
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
    Flag("html", "keep.html", output_file, HTML_HELP, metavar="FILE"),
)  # fmt: skip
