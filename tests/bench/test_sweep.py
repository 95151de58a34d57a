import pytest

from threefold.bench.load_options import LoadOptions
from threefold.bench.serve_options import ArrivalOptions, SweepOptions
from threefold.bench.sweep import bench_sweep, find_run_knee, place_of, sweep_lines, sweep_points
from threefold.errors import ConfigError


def run(users, rate, **more):
    return {
        "request_rate": "inf", "max_concurrency": users, "completed": 4, "num_prompts": 4, "output_throughput": rate,
        "num_interrupted": 0, "failures": {}, "median_ttft_ms": 5.0, "failed": 0, **more,
    }  # fmt: skip


def points(*users):
    return sweep_points(SweepOptions(concurrency=users), LoadOptions(), ArrivalOptions())


def swept(send, *users):
    said = []
    return bench_sweep(points(*users), send, say=said.append), said


def test_points_are_in_order_and_each_comes_once():
    assert [point.load.concurrency for point in points(4, 1, 4)] == [1, 4]
    rates = sweep_points(SweepOptions((8,), (2.0, 0.5)), LoadOptions(), ArrivalOptions())
    assert [(point.load.concurrency, point.arrival.request_rate) for point in rates] == [(8, 0.5), (8, 2.0)]


def test_without_a_choice_a_run_is_as_it_was():
    (point,) = sweep_points(SweepOptions(), LoadOptions(), ArrivalOptions())
    assert (point.load, point.arrival) == (LoadOptions(), ArrivalOptions())


def test_users_and_rates_cannot_both_be_swept():
    with pytest.raises(ConfigError, match="goes through --concurrency or through --request-rate"):
        sweep_points(SweepOptions((1, 2), (1.0, 2.0)), LoadOptions(), ArrivalOptions())


def test_every_point_is_measured_and_the_knee_found():
    result, said = swept(lambda point: run(point.load.concurrency, min(point.load.concurrency, 4) * 10.0), 1, 2, 4, 8)
    assert [one["max_concurrency"] for one in result["runs"]] == [1, 2, 4, 8]
    assert result["knee"] == {"at": 4.0, "reason": "8 would bring +0% tokens/s"}
    assert result["is_whole"]
    assert said[0] == "[1/4] 1 user: 10.0 tokens/s, TTFT 5.0 ms"
    assert any(line.startswith("knee: 4 users; 8 would") for line in sweep_lines(result))


def test_a_server_that_dies_ends_the_sweep_and_what_was_measured_is_kept():
    def send(point):
        users = point.load.concurrency
        return run(users, 10.0, server_gone="connection refused" if users == 2 else "")

    result, _ = swept(send, 1, 2, 4)
    assert len(result["runs"]) == 2
    assert not result["is_whole"]
    assert "the server went away" in result["ended"]


def test_ctrl_c_between_points_keeps_what_was_measured():
    def send(point):
        if point.load.concurrency > 1:
            raise KeyboardInterrupt
        return run(1, 10.0)

    result, _ = swept(send, 1, 2)
    assert len(result["runs"]) == 1
    assert result["ended"] == "stopped by Ctrl-C"
    assert result["knee"] is None
    assert sweep_lines(result)


def test_the_knee_keeps_the_limits():
    limits = {"goodput_limits_ms": {"tpot": 50.0}}
    runs = [
        run(users, 10.0 * users, **limits, goodput_attainment={"tpot": share}) for users, share in ((1, 1), (2, 0.5))
    ]
    assert find_run_knee(runs) == (1.0, "at 2 only 50% within tpot 50 ms")
    assert find_run_knee(runs[1:] * 2) == (None, "even at 2: only 50% within tpot 50 ms")


def test_a_curve_that_still_rises_says_so():
    assert find_run_knee([run(1, 10.0), run(2, 20.0)]) == (None, "throughput still rises at 2, the last point measured")


def test_where_runs_stand():
    assert place_of(run(8, 1.0)) == 8
    assert place_of({"request_rate": 2.5, "max_concurrency": None}) == 2.5
    assert place_of({"request_rate": "trace", "max_concurrency": 4}) is None
