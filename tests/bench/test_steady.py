import pytest

from threefold.bench.outcome import Outcome
from threefold.bench.steady import Window, closed_window, open_window, steady_figures


def outcome(start: float, *times: float, due: float | None = None, error: str = "") -> Outcome:
    return Outcome(
        start_s=start, end_s=times[-1], chunk_times_s=list(times), output_tokens=len(times), error=error, due_s=due
    )


# Two streams; both busy from 1.0 (second start) to 6.0 (stream one finds nothing more to send).
TWO_STREAMS = [outcome(0.0, 2.0, 3.0), outcome(1.0, 4.0, 5.0), outcome(3.0, 4.0, 6.0), outcome(5.0, 7.0, 9.0)]


def spans(outcomes: list[Outcome]) -> list[tuple[float, float]]:
    return [(one.start_s, one.end_s) for one in outcomes]


def test_ramp_and_tail_are_left_out() -> None:
    window = closed_window(spans(TWO_STREAMS), 2)
    assert window == Window(1.0, 6.0)
    figures = steady_figures(TWO_STREAMS, window, (99,))
    assert figures["steady_duration"] == 5.0
    assert figures["steady_output_throughput"] == pytest.approx(6 / 5)  # two pieces of the last come after it
    assert figures["steady_request_throughput"] == pytest.approx(3 / 5)
    assert figures["steady_completed"] == 2  # the first began before, the last ended after
    assert figures["steady_mean_ttft_ms"] == 2000  # (3 + 1) / 2
    assert "steady_p99_e2el_ms" in figures


def test_failed_requests_keep_a_stream_busy_too() -> None:
    outcomes = [*TWO_STREAMS[:3], outcome(5.0, 5.5, error="x"), outcome(5.5, 9.0)]
    assert closed_window(spans(outcomes), 2) == Window(1.0, 6.0)


@pytest.mark.parametrize(("outcomes", "users"), [([], 1), (TWO_STREAMS[:1], 2), ([outcome(0.0, 1.0)] * 2, 2)])
def test_streams_that_were_never_full_for_long(outcomes: list[Outcome], users: int) -> None:
    window = closed_window(spans(outcomes), users)
    assert window is None or window.duration_s > 0
    if len(outcomes) < users:
        assert window is None
    assert steady_figures(outcomes, None)["steady_output_throughput"] is None


def test_a_steady_rate_counts_from_one_answer_after_the_first_arrival() -> None:
    outcomes = [outcome(at, at + 0.5, at + 1.0, due=at) for at in range(10)]
    assert open_window(outcomes) == Window(1.0, 9.0)
    figures = steady_figures(outcomes, open_window(outcomes))
    assert figures["steady_request_throughput"] == pytest.approx(1.0)
    assert figures["steady_completed"] == 8


def test_a_rate_over_before_the_first_answer_was_never_steady() -> None:
    assert open_window([outcome(at, at + 5.0, due=at) for at in range(3)]) is None
    assert open_window([outcome(0.0, 1.0, due=0.0, error="x")]) is None
