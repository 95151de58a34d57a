"""Does another load generator read the same server as `threefold bench serve` does? AIPerf is asked, in turn with ours.

    python -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf       # its pins are its own: a venv of its own
    python scripts/cross_check.py --aiperf /tmp/aiperf/bin/aiperf          # a fake engine behind our server
    python scripts/cross_check.py --aiperf … --url http://127.0.0.1:8000   # any server

Both send the same prompts, in a closed loop of the same size, for answers of the same length, A B A B; with
--request-rate in an open loop, where neither client's own speed decides when the server is asked. Exit code 1 when
a figure's medians lie further apart than --tolerance. AIPerf's inter token latency is TPOT: it leaves the first token
out and divides by tokens. Tokens are those that the server counts; AIPerf loads a tokenizer all the same, so it gets
one of bytes, made here. It runs one worker, and a step of the fake engine is long: what its processes take from a small
machine's cores is then little beside the times that are compared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from threefold.bench.compare import interleave
from threefold.bench.fake_engine import FakeEngineOptions
from threefold.bench.http import fake_server

# What a figure is called: by us, by them.
FIGURES = {
    "mean TTFT (ms)": ("mean_ttft_ms", "time_to_first_token"),
    "mean TPOT (ms)": ("mean_tpot_ms", "inter_token_latency"),
    "mean E2EL (ms)": ("mean_e2el_ms", "request_latency"),
    "requests/s": ("request_throughput", "request_throughput"),
    "output tokens/s": ("output_throughput", "output_token_throughput"),
}


def main() -> int:
    """Measure in turn, print both, judge."""
    asked = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_prompts(folder, asked.requests)
        write_tokenizer(folder / "tokenizer")
        fake = FakeEngineOptions(max_num_seqs=asked.concurrency, step_s=asked.step_ms / 1e3)
        with nullcontext(asked.url) if asked.url else fake_server(fake) as url:
            ours, theirs = interleave([lambda: run_ours(asked, url, folder), lambda: run_theirs(asked, url, folder)],
                                      asked.rounds)  # fmt: skip
    return report(ours, theirs, asked.tolerance)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", default="aiperf", help="the program")
    parser.add_argument("--url", help="a server that runs; default: one with a fake engine is started")
    parser.add_argument("--model", default="fake", help="its model's name at --url")
    parser.add_argument("--concurrency", type=int, default=4, help="users; with --request-rate rows of the fake engine")
    parser.add_argument("--request-rate", type=float, help="requests a second, a Poisson process; default: closed loop")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--step-ms", type=float, default=100.0, help="time that a step of the fake engine takes")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tolerance", type=float, default=0.05)
    return parser.parse_args()


def write_prompts(folder: Path, count: int) -> None:
    """The same prompts in both programs' forms."""
    texts = [f"Question {index}: what is the power {index + 2} of 3, and why?" for index in range(count)]
    for file, key in (("ours.jsonl", "prompt"), ("theirs.jsonl", "text")):
        (folder / file).write_text("".join(json.dumps({key: text}) + "\n" for text in texts))


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, as a folder that Hugging Face's libraries load."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def arrivals(asked: argparse.Namespace) -> dict[str, object]:
    """When requests are sent; both programs call it the same, and a rate is a Poisson process to both."""
    if asked.request_rate is None:
        return {"--concurrency": asked.concurrency}
    return {"--request-rate": asked.request_rate}


def run_ours(asked: argparse.Namespace, url: str, folder: Path) -> dict[str, float]:
    """One run of `threefold bench serve`."""
    out = folder / "ours.json"
    flags = {
        "--url": url, "--model": asked.model, "--dataset": folder / "ours.jsonl", **arrivals(asked),
        "--num-prompts": asked.requests, "--max-tokens": asked.max_tokens, "--num-warmups": asked.concurrency,
        "--json": out,
    }  # fmt: skip
    call([sys.executable, "-m", "threefold", "bench", "serve", "--ignore-eos", *words(flags)])
    result = json.loads(out.read_text())
    return {figure: result[ours] for figure, (ours, _) in FIGURES.items()}


def run_theirs(asked: argparse.Namespace, url: str, folder: Path) -> dict[str, float]:
    """One run of AIPerf."""
    flags = {
        "--model": asked.model, "--url": url, "--endpoint-type": "chat", **arrivals(asked),
        "--request-count": asked.requests, "--warmup-request-count": asked.concurrency,
        "--input-file": folder / "theirs.jsonl", "--custom-dataset-type": "single_turn",
        "--tokenizer": folder / "tokenizer", "--artifact-dir": folder / "aiperf", "--ui": "none",
        "--workers-max": 1, "--record-processors": 1,
    }  # fmt: skip
    # Several values of one flag: temperature too, since ours asks for greedy answers.
    extra = [f"max_tokens:{asked.max_tokens}", "ignore_eos:true", "temperature:0"]
    fields = [word for each in extra for word in ("--extra-inputs", each)]
    call([asked.aiperf, "profile", "--streaming", "--use-server-token-count", *fields, *words(flags)])
    path = max((folder / "aiperf").rglob("profile_export_aiperf.json"), key=lambda found: found.stat().st_mtime)
    result = json.loads(path.read_text())
    return {figure: result[theirs]["avg"] for figure, (_, theirs) in FIGURES.items()}


def report(ours: list[dict[str, float]], theirs: list[dict[str, float]], tolerance: float) -> int:
    """Print the medians side by side; 1 when any differ by more than `tolerance`."""
    worst = 0.0
    print(f"{'':<18}{'threefold':>12}{'aiperf':>12}{'ratio':>8}")
    for figure in FIGURES:
        mine, other = median(run[figure] for run in ours), median(run[figure] for run in theirs)
        worst = max(worst, abs(mine / other - 1))
        print(f"{figure:<18}{mine:>12.2f}{other:>12.2f}{mine / other:>8.3f}")
    print(f"largest difference {worst:.1%}, tolerance {tolerance:.0%}, {len(ours)} rounds")
    return int(worst > tolerance)


def words(flags: dict[str, object]) -> list[str]:
    """A command line of flags with values."""
    return [str(word) for pair in flags.items() for word in pair]


def call(command: list[str]) -> None:
    """Run a program; its output is shown only when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 typed by the user
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
