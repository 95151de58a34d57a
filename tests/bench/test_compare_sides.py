import sys
from pathlib import Path

import msgspec
import pytest

from threefold.bench import compare_sides as sides_module
from threefold.bench.compare_options import CompareOptions
from threefold.bench.compare_sides import Side, compare_sides, figures, read_sides
from threefold.bench.compare_table import compare_lines, plot_comparison
from threefold.bench.fake_engine import FakeEngineOptions
from threefold.bench.load_options import LoadOptions
from threefold.bench.prompt import Prompt
from threefold.bench.serve import bench_server
from threefold.bench.target_options import TargetOptions
from threefold.bench.workload import Workload
from threefold.errors import ConfigError

A, B = (Side(name, f"http://{name}", (), None) for name in "ab")


def run(throughput: float, **more: object) -> dict:
    return {
        "completed": 3, "num_prompts": 3, "num_interrupted": 0, "output_throughput": throughput,
        "median_ttft_ms": 1000 / throughput, **more,
    }  # fmt: skip


def silent(line: str) -> None:
    pass


def test_what_differs_and_what_does_not() -> None:
    readings = iter([100, 200, 201, 101, 99, 199])  # a b, b a, a b
    asked_of: list[str] = []

    def send(target: TargetOptions) -> dict:
        asked_of.append(target.url)
        return run(next(readings), p99_tpot_ms=5.0, median_tpot_ms=None)

    result = compare_sides([A, B], send, TargetOptions(), CompareOptions(), say=silent)
    assert asked_of == [f"http://{name}" for name in "abbaab"]
    assert (result["num_rounds"], result["ended"]) == (3, "")
    by_name = {entry["figure"]: entry for entry in result["figures"]}
    assert set(by_name) == {"output_throughput", "median_ttft_ms", "p99_tpot_ms"}
    assert by_name["output_throughput"]["against_first"]["b"]["is_different"]
    assert by_name["output_throughput"]["sides"]["b"] == {"median": 200, "low": 199, "high": 201}
    assert "lower than a" in by_name["median_ttft_ms"]["against_first"]["b"]["verdict"]
    assert by_name["p99_tpot_ms"]["against_first"]["b"]["verdict"].startswith("no difference")
    lines = compare_lines(result)
    assert "b        200.00  (199.00 to 201.00)" in lines
    assert any(line.startswith("no difference: b / a = 1.000") for line in lines)


def test_more_than_two_sides_are_each_compared_with_the_first() -> None:
    found = figures(["x", "y", "z"], [[run(100)] * 3, [run(110)] * 3, [run(100)] * 3])
    against = found[0]["against_first"]
    assert (against["y"]["is_different"], against["z"]["is_different"]) == (True, False)


def test_whole_rounds_are_kept_when_one_is_cut_short() -> None:
    results = iter([run(100), run(200), run(200), run(100), run(100, num_interrupted=1, interrupted=True)])
    result = compare_sides([A, B], lambda target: next(results), TargetOptions(), CompareOptions(), say=silent)
    assert result["num_rounds"] == 2
    assert result["ended"] == (
        "round 3 of 3, a: stopped by Ctrl-C after 3 of 3 requests, 1 in flight were given up; the figures are of those"
    )
    assert "too few rounds" in result["figures"][0]["against_first"]["b"]["verdict"]


def test_no_whole_round() -> None:
    def send(target: TargetOptions) -> dict:
        raise KeyboardInterrupt

    result = compare_sides([A, B], send, TargetOptions(), CompareOptions(), say=silent)
    assert (result["num_rounds"], result["figures"], result["ended"]) == (0, [], "stopped by Ctrl-C")
    assert "no round was whole, so there is nothing to compare" in compare_lines(result)


@pytest.mark.parametrize("together", [False, True])
def test_servers_are_started_and_ended(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    real = sides_module.child_server
    monkeypatch.setattr(sides_module, "child_server", lambda *words: started.append("") or real(*words))
    options = msgspec.json.encode(FakeEngineOptions(max_num_seqs=4)).decode()
    fakes = [Side(name, None, (sys.executable, "-m", "threefold.bench.fake_engine", options), None) for name in "ab"]
    workload = Workload(tuple(Prompt(f"p{index}") for index in range(4)), 4, "x", "y", "all")
    load = LoadOptions(max_tokens=5, ignore_eos=True)
    said: list[str] = []
    result = compare_sides(
        fakes,
        lambda target: bench_server(workload, load, target),
        TargetOptions(),
        CompareOptions(rounds=1 if not together else 2, together=together),
        say=said.append,
    )
    assert result["ended"] == ""
    assert len(started) == 2
    assert said[0].startswith("round 1 of ")
    assert all(run["total_output_tokens"] == 20 for runs in result["runs"].values() for run in runs)
    assert bool(result["remarks"]) == together


def test_a_server_that_does_not_start_ends_it_with_its_reason() -> None:
    broken = Side("a", None, (sys.executable, "-c", "import sys; sys.exit('no such model')"), None)
    result = compare_sides([broken, B], lambda target: run(1), TargetOptions(), CompareOptions(), say=silent)
    assert result["num_rounds"] == 0
    assert result["ended"].endswith("exit code 1: no such model")


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_reading_sides(tmp_path: Path) -> None:
    started = write(tmp_path, "plain.yaml", "max-num-seqs: 8\napi-key: k\nspeculation: false\n")
    there = write(tmp_path, "there.yaml", "url: http://127.0.0.1:5\n")
    one, two = read_sides([started, there])
    assert (one.name, one.url, one.api_key) == ("plain", None, "k")
    assert one.command[-6:] == ("--config", started, "--host", "127.0.0.1", "--port", "0")
    assert (two.name, two.url, two.api_key) == ("there", "http://127.0.0.1:5", None)


def test_sides_of_one_name_are_told_apart(tmp_path: Path) -> None:
    path = write(tmp_path, "x.yaml", "url: http://127.0.0.1:5\n")
    assert [side.name for side in read_sides([path, path])] == [f"1:{path}", f"2:{path}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("url: x\nmax-num-seqs: 8\n", "so --max-num-seqs would change nothing"),
        ("uds: /tmp/x\n", "a load goes over TCP"),
        ("max-num-sesq: 8\n", "unknown flag --max-num-sesq"),
        ("max-num-seqs: [\n", "is no valid YAML"),
    ],
)
def test_sides_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, "x.yaml", text)
    with pytest.raises(ConfigError, match=said):
        read_sides([path, path])


def test_one_side_is_no_comparison() -> None:
    with pytest.raises(ConfigError, match="wants two or more YAML files, got 1"):
        read_sides(["a.yaml"])


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_a_picture(tmp_path: Path, name: str) -> None:
    result = compare_sides([A, B], lambda target: run(100), TargetOptions(), CompareOptions(), say=silent)
    plot_comparison(tmp_path / name, result)
    plot_comparison(tmp_path / f"empty-{name}", {**result, "figures": []})
    assert (tmp_path / name).stat().st_size > 1000
