"""Moments of arrival are checked as what they claim to be: their mean, their spread, their end."""

import numpy as np
import pytest

from threefold.bench.arrivals import Arrivals, describe_arrivals, plan_arrivals
from threefold.bench.prompt import Prompt
from threefold.bench.serve_options import ArrivalOptions
from threefold.bench.workload import Workload
from threefold.errors import ConfigError


def workload(count: int) -> Workload:
    return Workload(tuple(Prompt(f"p{index}") for index in range(count)), count, "x", "y", "all")


def trace(*moments: float) -> Workload:
    return Workload(tuple(Prompt("p", at_s=moment) for moment in moments), len(moments), "x", "y", "all")


def gaps(count: int, asked: ArrivalOptions, seed: int = 0) -> np.ndarray:
    moments = np.asarray(plan_arrivals(workload(count), asked, None, seed).at_s)
    return np.diff(moments, prepend=0.0)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_intervals_are_gamma_distributed(shape: float) -> None:
    intervals = gaps(20_000, ArrivalOptions(request_rate=50, burstiness=shape))
    assert (intervals >= 0).all()
    assert intervals.sum() == pytest.approx(20_000 / 50)  # the last one at n / rate, whatever was drawn
    assert intervals.std() / intervals.mean() == pytest.approx(shape**-0.5, rel=0.05)
    skewness = ((intervals - intervals.mean()) ** 3).mean() / intervals.std() ** 3
    assert skewness == pytest.approx(2 * shape**-0.5, rel=0.15)  # a gamma's, and no other distribution's of this spread


def test_poisson_arrivals_are_memoryless() -> None:
    intervals = gaps(20_000, ArrivalOptions(request_rate=10))
    assert (intervals > 0.1).mean() == pytest.approx(np.exp(-1), abs=0.01)
    per_second = np.bincount(np.cumsum(intervals).astype(int))[:-1]
    assert per_second.var() / per_second.mean() == pytest.approx(1.0, abs=0.1)


def test_even_arrivals() -> None:
    assert gaps(10, ArrivalOptions(request_rate=5, burstiness=float("inf"))) == pytest.approx(0.2)


def test_seeds() -> None:
    asked = ArrivalOptions(request_rate=5)
    assert (gaps(20, asked, 1) == gaps(20, asked, 1)).all()
    assert (gaps(20, asked, 1) != gaps(20, asked, 2)).all()


def test_very_bursty_arrivals_are_still_moments() -> None:
    moments = plan_arrivals(workload(5), ArrivalOptions(request_rate=1, burstiness=1e-6), None, 0).at_s
    assert moments[-1] == pytest.approx(5.0)
    assert list(moments) == sorted(moments)


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_ramps(strategy: str, middle: float) -> None:
    asked = ArrivalOptions(burstiness=float("inf"), ramp_up_strategy=strategy, ramp_up_start_rps=1, ramp_up_end_rps=100)
    rates = 1 / gaps(101, asked)
    assert (rates[0], rates[50], rates[100]) == pytest.approx((1, middle, 100))
    assert (np.diff(rates) > 0).all()
    shown = describe_arrivals(asked, plan_arrivals(workload(3), asked, 7, 0))
    assert (shown["request_rate"], shown["ramp_up_strategy"], shown["max_concurrency"]) == ("ramp", strategy, 7)
    assert shown["burstiness"] == "inf"  # JSON has no infinity


def test_a_trace_is_replayed_at_its_own_moments() -> None:
    assert plan_arrivals(trace(0, 1, 5), ArrivalOptions(), None, 0) == Arrivals((0, 1, 5), None)
    fast = plan_arrivals(trace(0, 1, 5), ArrivalOptions(speedup=4), 8, 0)
    assert fast == Arrivals((0, 0.25, 1.25), 8)
    shown = describe_arrivals(ArrivalOptions(speedup=4), fast)
    assert (shown["request_rate"], shown["speedup"]) == ("trace", 4)


def test_a_rate_takes_the_place_of_a_trace_s_moments() -> None:
    assert plan_arrivals(trace(0, 60), ArrivalOptions(request_rate=2), None, 0).at_s[-1] == 1.0
    assert plan_arrivals(trace(0, 60), ArrivalOptions(request_rate=float("inf")), 1, 0) == Arrivals(None, 1)


def test_closed_loops() -> None:
    assert plan_arrivals(workload(40), ArrivalOptions(), None, 0) == Arrivals(None, 16)
    assert plan_arrivals(workload(40), ArrivalOptions(request_rate=float("inf")), None, 0) == Arrivals(None, 40)
    closed = plan_arrivals(workload(40), ArrivalOptions(), 3, 0)
    assert describe_arrivals(ArrivalOptions(), closed) == {
        "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 3,
    }  # fmt: skip


def test_one_rate_is_steady() -> None:
    plan = plan_arrivals(workload(4), ArrivalOptions(request_rate=2), None, 0)
    assert plan.has_steady_rate
    assert describe_arrivals(ArrivalOptions(request_rate=2), plan)["request_rate"] == 2


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (ArrivalOptions(ramp_up_strategy="linear", ramp_up_start_rps=1), "wants both"),
        (ArrivalOptions(ramp_up_end_rps=1), "want --ramp-up-strategy"),
        (ArrivalOptions(3, ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=2), "exclude each other"),
        (ArrivalOptions(ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=float("inf")), "finite"),
        (ArrivalOptions(speedup=2), "wants a trace"),
    ],
)
def test_contradictions(asked: ArrivalOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_arrivals(workload(2), asked, None, 0)


@pytest.mark.parametrize("asked", [ArrivalOptions(2, speedup=2), ArrivalOptions(speedup=float("inf"))])
def test_speeds_of_a_trace_that_contradict(asked: ArrivalOptions) -> None:
    with pytest.raises(ConfigError, match="--speedup wants a"):
        plan_arrivals(trace(0, 1), asked, None, 0)
