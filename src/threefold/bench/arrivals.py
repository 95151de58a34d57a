"""When each request of a load is sent: as fast as answers come, at a rate, on a ramp, or as a trace says. Pure numbers.

Semantics are those of `vllm bench serve`: intervals are gamma distributed with shape `burstiness`; at a constant rate
they are stretched so that the last of n requests is sent at n / rate; on a ramp the rate goes with the request's place.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from threefold.bench.serve_options import ArrivalOptions
from threefold.bench.workload import Workload
from threefold.errors import ConfigError

DEFAULT_CONCURRENCY = 16


class Arrivals(NamedTuple):
    """When requests are sent."""

    at_s: tuple[float, ...] | None
    """A moment for each request, from the load's beginning; None = closed loop."""
    concurrency: int | None
    """Most requests in flight: the users of a closed loop, a cap on an open one; None = no cap."""
    has_steady_rate: bool = False
    """True when one rate was asked throughout."""


def plan_arrivals(workload: Workload, asked: ArrivalOptions, concurrency: int | None, seed: int) -> Arrivals:
    """What the flags ask for, as moments.

    Raises:
        ConfigError: flags that contradict one another.
    """
    _check(workload, asked)
    count = len(workload.prompts)
    if asked.ramp_up_strategy is not None:
        return Arrivals(tuple(gamma_moments(ramp_rates(count, asked), asked.burstiness, seed).tolist()), concurrency)
    if asked.request_rate is None and workload.is_trace:
        return Arrivals(tuple((prompt.at_s or 0.0) / asked.speedup for prompt in workload.prompts), concurrency)
    if asked.request_rate is None:
        return Arrivals(None, concurrency or DEFAULT_CONCURRENCY)
    if math.isinf(asked.request_rate):
        return Arrivals(None, concurrency or count)
    moments = gamma_moments(np.full(count, asked.request_rate), asked.burstiness, seed)
    stretched = moments * (count / asked.request_rate / moments[-1])
    return Arrivals(tuple(stretched.tolist()), concurrency, has_steady_rate=True)


def ramp_rates(count: int, asked: ArrivalOptions) -> np.ndarray:
    """The rate at each request."""
    first, last = asked.ramp_up_start_rps, asked.ramp_up_end_rps
    assert first is not None
    assert last is not None
    progress = np.arange(count) / max(count - 1, 1)
    if asked.ramp_up_strategy == "linear":
        return first + (last - first) * progress
    return first * (last / first) ** progress


def gamma_moments(rates: np.ndarray, burstiness: float, seed: int) -> np.ndarray:
    """Moments of arrivals whose intervals have mean 1 / rate and are gamma distributed with shape `burstiness`."""
    if math.isinf(burstiness):
        return np.cumsum(1 / rates)
    intervals = np.random.default_rng(seed).gamma(burstiness, 1 / (rates * burstiness))
    return np.cumsum(np.maximum(intervals, 1e-12))  # a very bursty draw may be 0 throughout


def describe_arrivals(asked: ArrivalOptions, arrivals: Arrivals) -> dict[str, Any]:
    """The result's keys that say when requests were sent; what JSON cannot write is spelled out."""
    if arrivals.at_s is None:
        rate: float | str = "inf"
    elif arrivals.has_steady_rate:
        rate = asked.request_rate or 0.0
    else:
        rate = "ramp" if asked.ramp_up_strategy else "trace"
    return {
        "request_rate": rate,
        "burstiness": "inf" if math.isinf(asked.burstiness) else asked.burstiness,
        "max_concurrency": arrivals.concurrency,
        **({"speedup": asked.speedup} if rate == "trace" else {}),
        **(
            {
                "ramp_up_strategy": asked.ramp_up_strategy,
                "ramp_up_start_rps": asked.ramp_up_start_rps,
                "ramp_up_end_rps": asked.ramp_up_end_rps,
            }
            if rate == "ramp"
            else {}
        ),
    }


def _check(workload: Workload, asked: ArrivalOptions) -> None:
    ends = (asked.ramp_up_start_rps, asked.ramp_up_end_rps)
    if asked.ramp_up_strategy is None and ends != (None, None):
        raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps want --ramp-up-strategy linear or exponential")
    if asked.ramp_up_strategy is not None and None in ends:
        raise ConfigError("--ramp-up-strategy wants both --ramp-up-start-rps and --ramp-up-end-rps")
    if asked.ramp_up_strategy is not None and any(map(math.isinf, filter(None, ends))):
        raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps want finite rates")
    if asked.ramp_up_strategy is not None and asked.request_rate is not None:
        raise ConfigError("--request-rate and --ramp-up-strategy exclude each other: a ramp has a rate of its own")
    has_moments = workload.is_trace and asked.request_rate is None and asked.ramp_up_strategy is None
    if asked.speedup != 1 and not has_moments:
        raise ConfigError("--speedup wants a trace with timestamps, replayed at its own moments (no --request-rate)")
    if math.isinf(asked.speedup):
        raise ConfigError("--speedup wants a finite factor; --request-rate inf sends a trace's prompts at once")
