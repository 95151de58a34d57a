import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.bench import measure as m
from threefold.bench.outcome import Outcome
from threefold.errors import ConfigError


def outcome(
    start: float, *times: float, tokens: int | None = None, end: float | None = None, error: str = ""
) -> Outcome:
    return Outcome(
        start_s=start,
        end_s=end if end is not None else (times[-1] if times else start),
        chunk_times_s=list(times),
        prompt_tokens=10,
        output_tokens=len(times) if tokens is None else tokens,
        is_counted=True,
        finish_reason="length",
        error=error,
    )


def test_times_of_one_request() -> None:
    one = outcome(1.0, 1.5, 1.7, 2.0, tokens=6)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.latency_s == pytest.approx(1.0)
    assert one.tpot_s == pytest.approx(0.1)  # half a second for five tokens after the first
    assert one.gaps_s == pytest.approx([0.2, 0.3])
    assert outcome(0.0, 1.0).tpot_s == 0.0


def test_figures_of_a_load() -> None:
    outcomes = [outcome(0.0, 1.0, 2.0), outcome(0.0, 1.0, 3.0, tokens=3), outcome(0.5, end=0.6, error="HTTP 503: busy")]
    result = m.measure(outcomes, 4.0)
    assert (result["completed"], result["failed"], result["failures"]) == (2, 1, {"HTTP 503: busy": 1})
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (20, 5)
    assert result["request_throughput"] == 0.5
    assert result["output_throughput"] == 1.25
    assert result["total_token_throughput"] == 6.25
    assert result["mean_ttft_ms"] == 1000
    assert result["median_tpot_ms"] == 1000
    assert result["mean_e2el_ms"] == 2500
    assert result["max_concurrent_requests"] == 3
    assert result["finish_reasons"] == {"length": 2}
    assert result["tokens_counted_by"] == "server"


def test_keys_are_those_that_scripts_read() -> None:
    result = m.measure([outcome(0.0, 1.0, 2.0)], 2.0)
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for what in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            assert isinstance(result[f"{what}_{metric}_ms"], float)
    assert {
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests",
    } <= set(result)  # fmt: skip


def test_nothing_completed() -> None:
    result = m.measure([outcome(0.0, error="x")], 1.0)
    assert (result["completed"], result["failed"], result["output_throughput"]) == (0, 1, 0)
    assert result["mean_ttft_ms"] is None
    assert m.measure([], 0.0)["output_throughput"] is None


def test_rare_reasons_are_counted_together() -> None:
    failures = m.measure([outcome(0.0, error=f"reason {index}") for index in range(25)], 1.0)["failures"]
    assert len(failures) == 21
    assert failures["other reasons"] == 5


def test_percentiles_interpolate() -> None:
    spread = m.spread("ttft", [float(value) for value in range(1, 101)])
    assert spread["p50_ttft_ms"] == spread["median_ttft_ms"] == 50.5
    assert spread["p99_ttft_ms"] == pytest.approx(99.01)
    assert spread["std_ttft_ms"] == pytest.approx(28.866, abs=1e-3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_percentiles_are_ordered_and_within_the_samples(samples: list[float]) -> None:
    spread = m.spread("itl", samples)
    ordered = [spread[f"p{p:g}_itl_ms"] for p in m.PERCENTILES]
    assert ordered == sorted(ordered)
    assert min(samples) <= ordered[0] <= ordered[-1] <= max(samples) or math.isclose(ordered[0], ordered[-1])


def test_tokens_are_spread_over_pieces() -> None:
    assert m.peak_tokens_per_s([outcome(0.0, 0.1, 0.2, 1.5, 2.5, tokens=8)]) == 4.0


def test_an_end_and_a_start_at_one_moment_are_no_overlap() -> None:
    assert m.max_concurrent([outcome(0.0, 1.0), outcome(1.0, 2.0)]) == 1


def test_goodput_counts_what_meets_every_limit() -> None:
    outcomes = [
        outcome(0.0, 0.1, 0.2),
        outcome(0.0, 0.9, 1.0),
        outcome(0.0, 0.1, 2.0),
        outcome(0.0, 0.1),
        outcome(0.0, error="x"),
    ]
    limits = m.parse_goodput(["ttft:500", "tpot:150"])
    assert limits == {"ttft": 500.0, "tpot": 150.0}
    result = m.goodput(outcomes, 2.0, limits)
    assert result["request_goodput"] == 1.0  # the first and the one-token answer, in two seconds
    assert result["goodput_attainment"] == {"ttft": 0.6, "tpot": 0.6}


def test_prompt_tokens_that_no_server_counted_are_unknown() -> None:
    uncounted = outcome(0.0, 1.0, 2.0)
    uncounted.is_counted = False
    result = m.measure([uncounted, outcome(0.0, 1.0)], 2.0)
    assert (result["tokens_counted_by"], result["total_output_tokens"]) == ("pieces", 3)
    assert result["total_input_tokens"] is None
    assert result["total_token_throughput"] is None


def test_waiting_in_the_client_is_a_figure_of_its_own() -> None:
    late = outcome(1.5, 2.0, 3.0)
    late.due_s = 1.0
    result = m.measure([late], 3.0)
    assert result["mean_ttft_ms"] == 500
    assert result["mean_client_queue_time_ms"] == 500
    assert (result["mean_e2el_ms"], result["mean_e2el_including_client_queue_ms"]) == (1500, 2000)
    assert m.measure([outcome(0.0, 1.0)], 1.0)["mean_client_queue_time_ms"] is None


def test_percentiles_as_asked() -> None:
    result = m.measure([outcome(0.0, 1.0, 2.0)], 2.0, (25, 99.9))
    assert result["p25_ttft_ms"] == result["p99.9_ttft_ms"] == 1000
    assert "p90_ttft_ms" not in result


def test_limits_may_be_joined_by_commas() -> None:
    assert m.parse_goodput(["ttft:500,tpot:50"]) == m.parse_goodput(["ttft:500", "tpot:50"])


@pytest.mark.parametrize("term", ["ttft", "ttft:", "ttft:fast", "itl:5", "ttft:0", "ttft:-1", "tpot:nan"])
def test_goodput_limits_that_are_none(term: str) -> None:
    with pytest.raises(ConfigError, match=f"--goodput {term}"):
        m.parse_goodput([term])
