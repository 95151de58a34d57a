"""Bench commands whole: words in, table, JSON and exit code out; Ctrl-C from outside."""

import asyncio
import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from threefold.bench.client import Endpoint
from threefold.bench.commands import run_bench, without_secrets
from threefold.bench.fake_engine import FakeEngineOptions
from threefold.bench.http import fake_server
from threefold.bench.scrape import scrape
from threefold.errors import ConfigError


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with fake_server(FakeEngineOptions(max_num_seqs=16, step_s=0.002)) as url:
        yield url


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"tell me of {index}"}) + "\n" for index in range(8)))
    return str(path)


def test_serve(server: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    words = f"serve --url {server} --dataset {dataset} --num-prompts 10 --concurrency 4 --max-tokens 20 --ignore-eos"
    assert run_bench([*words.split(), "--goodput", "ttft:60000", "--api-key", "secret", "--json", str(out)]) == 0
    assert "Successful requests:                     10" in capsys.readouterr().out
    result = json.loads(out.read_text())
    assert (result["completed"], result["total_output_tokens"], result["num_distinct_prompts"]) == (10, 200, 8)
    assert result["goodput_attainment"] == {"ttft": 1.0}
    assert result["prefix_cache_hit_rate"] >= 0
    assert result["command"].startswith("threefold bench serve --url")
    assert "secret" not in out.read_text()


def test_serve_at_a_rate_as_vllm_s_users_type_it(server: str, dataset: str, tmp_path: Path, capsys) -> None:
    words = f"serve --backend openai-chat --port {server.rpartition(':')[2]} --dataset-name custom"
    words += f" --dataset-path {dataset} --num-prompts 12 --request-rate 200 --burstiness 0.5 --max-concurrency 8"
    words += " --custom-output-len 5 --ignore-eos --percentile-metrics ttft,e2el --metric-percentiles 25,99.9"
    words += f" --result-dir {tmp_path} --result-filename out.json --save-detailed --metadata team=us --num-warmups 2"
    assert run_bench(words.split()) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["request_rate"], result["burstiness"], result["max_concurrency"]) == (200, 0.5, 8)
    assert (result["completed"], result["total_output_tokens"], result["team"]) == (12, 60, "us")
    assert len(result["ttfts"]) == len(result["queue_times"]) == 12
    assert sorted(result["start_times"]) == result["start_times"]
    assert result["p99.9_e2el_including_client_queue_ms"] >= result["p25_e2el_ms"] > 0
    table = capsys.readouterr().out.partition("Steady State")[0]
    assert "P99.9 TTFT (ms):" in table
    assert "TPOT" not in table


def test_serve_at_several_concurrencies(server: str, dataset: str, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    out, page = tmp_path / "out.json", tmp_path / "page.html"
    words = f"serve --url {server} --dataset {dataset} --num-prompts 6 --concurrency 1 2,4 --max-tokens 4 --ignore-eos"
    assert run_bench([*words.split(), "--label", "<b>", "--json", str(out), "--html", str(page)]) == 0
    result = json.loads(out.read_text())
    assert [run["max_concurrency"] for run in result["runs"]] == [1, 2, 4]
    assert all(run["completed"] == 6 for run in result["runs"])
    assert result["is_whole"]
    assert result["knee"]["at"] in (1, 2, 4, None)
    assert result["knee"]["reason"]
    shown = capsys.readouterr()
    assert "Sweep Result" in shown.out
    assert "[3/3] 4 users: " in shown.err
    assert "&lt;b&gt;" in page.read_text()
    assert "Time to the first token" in page.read_text()


def test_a_sweep_that_contradicts_itself(server: str, dataset: str) -> None:
    words = f"serve --url {server} --dataset {dataset} --concurrency 1 2 --request-rate 1 2"
    with pytest.raises(ConfigError, match="give one value of the other"):
        run_bench(words.split())


def test_serve_a_trace(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    lines = [
        {"timestamp": 400 * index, "input_length": 1000, "output_length": 3, "hash_ids": [0, 1 + index]}
        for index in range(4)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = f"serve --url {server} --dataset {trace} --dataset-name mooncake --speedup 4 --ignore-eos --json {out}"
    assert run_bench([*words.split(), "--save-detailed", "--result-dir", str(tmp_path)]) == 0
    result = json.loads(out.read_text())
    assert (result["request_rate"], result["speedup"], result["completed"]) == ("trace", 4, 4)
    assert result["total_output_tokens"] == 12
    assert all(sent >= due - 0.002 for sent, due in zip(result["start_times"], [0.0, 0.1, 0.2, 0.3], strict=True))
    # 512 of 1000 tokens are shared; the server's tokenizer was asked how many words those are.
    assert result["total_input_tokens"] == pytest.approx(4000, rel=0.05)
    assert 0.3 < result["prefix_cache_hit_rate"] < 0.6
    assert "say nothing of drafts" in capsys.readouterr().out


def test_compare(server: str, dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(f"url: {server}\n")
    out = tmp_path / "out.json"
    words = ["compare", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"), "--dataset", dataset, "--max-tokens", "4"]
    assert run_bench([*words, "--rounds", "2", "--json", str(out), "--plot", str(tmp_path / "c.svg")]) == 0
    result = json.loads(out.read_text())
    assert [side["name"] for side in result["sides"]] == ["a", "b"]
    assert len(result["runs"]["a"]) == 2
    assert (tmp_path / "c.svg").exists()
    shown = capsys.readouterr()
    assert "too few rounds to say more" in shown.out
    assert "round 2 of 2, a: " in shown.err


def kill_when_busy(process: psutil.Process, url: str) -> None:
    while num_answered(url) < 30:
        time.sleep(0.05)
    process.kill()


def test_a_server_that_dies_in_the_middle(dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    others = set(psutil.Process().children())
    with fake_server(FakeEngineOptions(max_num_seqs=4, step_s=0.002)) as url:
        (process,) = set(psutil.Process().children()) - others
        killer = threading.Thread(target=kill_when_busy, args=(process, url))
        killer.start()
        words = f"serve --url {url} --dataset {dataset} --num-prompts 100000 --max-tokens 20 --ignore-eos --json {out}"
        assert run_bench(words.split()) == 1
        killer.join()
    result = json.loads(out.read_text())
    assert 0 < result["completed"] < 100_000
    assert result["output_throughput"] > 0
    assert capsys.readouterr().err.startswith("threefold: the server went away (connection refused) after ")


def test_control(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert run_bench(["control", "--rows", "4", "--steps", "5", "--repeats", "2", "--json", str(out)]) == 0
    assert "Plan + commit" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"] == 4


@contextlib.contextmanager
def refusing_server() -> Iterator[str]:
    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(503)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_nothing_completed_is_exit_code_1(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    with refusing_server() as url:
        assert run_bench(["serve", "--url", url, "--model", "m", "--dataset", dataset]) == 1
    printed = capsys.readouterr()
    assert "Failed requests:                         8" in printed.out
    assert "8 x HTTP 503" in printed.out
    assert printed.err.startswith("threefold: no request succeeded: 8 x HTTP 503")


def num_answered(server: str) -> float:
    return asyncio.run(scrape(Endpoint.from_url(server))).get("vllm:request_success", 0.0)


def test_ctrl_c_keeps_what_was_measured(server: str, dataset: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "threefold", "bench", "serve", "--url", server, "--dataset", dataset]
    command += ["--num-prompts", "100000", "--max-tokens", "20", "--ignore-eos", "--json", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    already = num_answered(server)
    while num_answered(server) < already + 30 and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    result = json.loads(out.read_text())
    assert 0 < result["completed"] < 100_000
    assert result["num_interrupted"] > 0
    assert result["failed"] == 0
    assert "Interrupted requests:" in stdout
    assert "threefold: stopped by Ctrl-C after " in stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--dataset", "/nowhere.jsonl"], "cannot read it"),
        (["serve", "--url", "ftp://x"], "--dataset FILE is needed"),
        (["offline", "A", "B"], "no use for 'B'"),
        (["control", "x"], "no use for 'x'"),
        (["serve", "--dataset-name", "sonnet"], "wants one of auto, spec_bench"),
        (["serve", "--percentile-metrics", "ttft,x"], "--percentile-metrics wants one of ttft"),
        (["serve", "--metric-percentiles", "101"], "between 0 and 100"),
        (["serve", "--request-rate", "0"], "--request-rate wants a number above 0"),
        (["compare", "a.yaml"], "two or more YAML files, got 1"),
        (["compare", "a.yaml", "b.yaml", "--url", "x"], "a side names its server"),
        (["http", "--streams", "many"], "--streams wants a whole number"),
        (["envelope", "--dataset", "x", "--methods", "eagle"], "wants one of ngram, suffix"),
        (["envelope", "--concurrency", "1,,x"], "--concurrency wants a whole number"),
        (["envelope", "--fixed", ","], "--fixed wants at least one value"),
        (["envelope"], "--dataset FILE is needed"),
        (["envelope", "--plot", "x.jpg"], "--plot x.jpg: wants a file ending in"),
        (["step-load", "--users", "4,0"], "--users wants a whole number"),
        (["step-load"], "--dataset FILE is needed"),
        (["offline", "--trust-remote-code"], "--trust-remote-code: not built"),
    ],
)
def test_mistakes(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_bench(words)
    assert said in str(caught.value)


def test_a_goodput_limit_is_checked_before_the_load(dataset: str) -> None:
    with pytest.raises(ConfigError, match="--goodput swift"):
        run_bench(["serve", "--url", "http://127.0.0.1:1", "--dataset", dataset, "--goodput", "swift"])


@pytest.mark.parametrize("command", ["serve", "compare", "offline", "envelope", "step-load", "control", "http"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: threefold bench {command} ")


def test_secrets_are_masked() -> None:
    words = ["serve", "--api-key", "s", "--header", "A=s", "B=s", "--api-key=s", "--api_key", "s", "--model", "m"]
    shown = without_secrets(words)
    assert "s" not in shown
    assert shown[-2:] == ["--model", "m"]
    assert "=s" not in " ".join(shown)
