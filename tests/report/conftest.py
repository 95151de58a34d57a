"""Small results of every kind, made by the code that writes them: what a writer renames, a reader here misses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from threefold import cli
from threefold.advise import commands
from threefold.advise.advise import Advice
from threefold.advise.knee import KneePoint
from threefold.advise.ladder import QUANTISATION, RUNGS, Ladder, LadderResult, Step, conclusions
from threefold.advise.result import LoadResult
from threefold.advise.tune import Tuned
from threefold.advise.verdict import ON, UNKNOWN, LoadGain, Verdict
from threefold.advise.verify_cell import Cell as VerifyCell
from threefold.bench.compare_sides import figures
from threefold.bench.envelope_cell import Cell, Run, describe
from threefold.bench.measure import goodput, measure
from threefold.bench.outcome import Outcome
from threefold.bench.step_load import StepRecord, changes
from threefold.bench.steps import StepLine, summary
from threefold.metrics import EngineStats
from threefold.report.build import build_page
from threefold.report.parts import Part, parts_of
from threefold.testing.byte_tokenizer import ByteTokenizer

NASTY = "<script>alert(1)</script>&\"'"
ORIGIN = {
    "date": "2026-11-30T10:00:00+00:00",
    "command": "threefold bench something --label 'a b'",
    "git_commit": "0123456789abcdef+changes",
    "machine": {"cpu": "A fine CPU", "cores": 8, "memory_bytes": 2**34, "torch": "2.13", "threefold": "0.1.0"},
}


def serve_run(users: int = 4, *, rate: float | str = "inf", **more: Any) -> dict[str, Any]:
    """A result of `bench serve` whose throughput doubles up to four users."""
    outcomes = []
    for index in range(12):
        start = index * 0.1
        times = [start + 0.01 * users * (place + 1) for place in range(5)]
        outcomes.append(Outcome(start, chunk_times_s=times, end_s=times[-1], output_tokens=10, prompt_tokens=7,
                                is_counted=True))  # fmt: skip
    return {
        **ORIGIN,
        "endpoint_type": "openai-chat", "model_id": "models/tiny", "label": None, "dataset": "data/prompts.jsonl",
        "group": "all", "max_tokens": 10, "temperature": 0.0, "request_rate": rate, "max_concurrency": users,
        **measure(outcomes, 12 / min(users, 4)),
        **goodput(outcomes, 12 / min(users, 4), {"ttft": 500.0}),
        "spec_decode_acceptance_rate": 50.0, "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2],
        "remarks": ["a remark"],
        **more,
    }  # fmt: skip


def envelope_result(group: str = "extract") -> dict[str, Any]:
    speeds = {"off": 100.0, "gated": 99.9, "fixed 2": 140.0, "adaptive": 141.0}
    cells = []
    for users, factor in ((1, 1.0), (16, 3.0)):
        runs = {
            name: [Run(factor * speed + turn / 10, 0, [[1, 2]], EngineStats()) for turn in range(3)]
            for name, speed in speeds.items()
        }
        cells.append(describe(Cell(group, users, "ngram", 1, 1, runs)))
    return {
        **ORIGIN, "benchmark": "envelope", "variants": list(speeds), "notes": ["a note"], "rounds": 3, "max_tokens": 9,
        "is_interrupted": False, "is_cpu_time": False, "cells": cells,
    }  # fmt: skip


def ladder_result(load: str = "stories") -> dict[str, Any]:
    rates = (10.0, 20.0, 40.0, 50.0, 50.0)
    steps = [
        Step(rung, rate, 1000 / rate, 100 / rate, rate / before, rate / rates[0])
        for rung, rate, before in zip(RUNGS, rates, (rates[0], *rates), strict=False)
    ]
    ladders = [Ladder(load, 8, 32, steps)]
    return {**ORIGIN, **LadderResult(ladders, {QUANTISATION: "no copy"}, conclusions(ladders), is_cut=False).to_dict()}


def comparison_result() -> dict[str, Any]:
    runs = [[{"output_throughput": speed + turn} for turn in range(3)] for speed in (100.0, 150.0)]
    return {
        **ORIGIN, "sides": [{"name": "a"}, {"name": "b"}], "num_rounds": 3, "rounds_asked": 3, "ended": "",
        "figures": figures(["a", "b"], runs), "remarks": [], "runs": {},
    }  # fmt: skip


def step_load_result(group: str = "mixed") -> dict[str, Any]:
    """Two users, eight, two again, who draft four tokens a row where there are few."""
    records = []
    for users, drafts in ((2, 4), (8, 1), (2, 4)):
        num = users * drafts
        records += [StepRecord(users, users, users, users + num, num, num, users, 5.0 + users) for _ in range(60)]
    return {
        **ORIGIN, "benchmark": "step-load", "model_id": "models/tiny", "group": group, "num_failed": 1,
        "changes": changes(records), "num_draft_tokens": 100, "num_accepted_tokens": 40,
        "steps": [asdict(record) for record in records],
    }  # fmt: skip


def steps_result(rows: int = 4, model: str = "models/tiny") -> dict[str, Any]:
    lines = [StepLine(rows, 0.1, 0.2, 5.0, 0.3, 0.05, 6.0 + turn, 5.5, 0.2, 0.5) for turn in range(9)]
    return {
        **ORIGIN, "benchmark": "steps", "model_id": model, "rows": rows, "input_len": 8, "temperature": 0.0,
        **summary(lines), "parts_ms": {"attention": 1.5, "products": 4.0}, "steps": [asdict(line) for line in lines],
    }  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="session")
def log(folder: Path) -> Path:
    """Requests with times, shared beginnings, answers that copy, and a kind that is no good name."""
    shared = "the same long beginning of every prompt " * 2
    entries = [
        {"prompt": f"{shared} secret number {index}", "output": shared, "category": NASTY, "timestamp": 700 * index}
        for index in range(12)
    ]
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture(scope="session")
def words_are_bytes() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "open_tokenizer", lambda config: ByteTokenizer())
        yield


@pytest.fixture(scope="session")
def portrait_result(log: Path, folder: Path, words_are_bytes: None) -> dict[str, Any]:
    out = folder / "portrait.json"
    assert cli.main(["profile", str(log), "--include-text", "--json", str(out)]) == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="session")
def advise_result(portrait_result: dict[str, Any]) -> dict[str, Any]:
    """Advice, verified and tuned; no engine made it, the types are the advisor's own."""
    gains = [LoadGain(users, 1.0 * users, 0.4 / users, -0.1, -0.2) for users in (1, 4, 16)]
    verdicts = [
        Verdict("max_num_seqs", "set to 1", "--max-num-seqs 1", 0.07, reason="knee at 1"),
        Verdict("ngram", ON, "--spec-method ngram", 0.4, 0.3, 0.5, -0.1, -0.2, "stops to pay at about 9 users",
                "nothing", "drafts are right", by_load=gains),
        Verdict("fp8 weights", ON, "--quantization fp8", 0.2, 0.1, 0.3, is_estimate=True, by_load=gains),
        Verdict("suffix", UNKNOWN, reason="the log has no answers to replay"),
    ]  # fmt: skip
    points = [KneePoint(1, 100.0, 10.0, 5.0, ()), KneePoint(2, 102.0, 20.0, 9.0, ("TPOT breaks",))]
    base = LoadResult(1.0, 2, output_tokens=20, ttft_ms=[5.0], tpot_ms=[2.0]).to_dict()
    advice = Advice(
        "made-up", "a fine card", 2, "as asked", base, {"ttft": 500.0}, [], points, verdicts, ["do this"],
        {"draft_ratio": 0.1},
    )  # fmt: skip
    cells = [VerifyCell("ngram", 2, 12, 0.4, 0.5, 0.05, 100, 90), VerifyCell("suffix", 2, 12, 0.1, -0.2, 0.01, 1, 2)]
    measured = [cell.to_dict() for cell in cells]
    tuned = Tuned(points, cells, {"max-num-seqs": 1}, ["because it was measured"])
    return {
        **ORIGIN, "facts": {"device": "a fine card"}, "portrait": portrait_result, "advice": advice.to_dict(),
        "verification": measured, "tuned": tuned.to_dict(),
    }  # fmt: skip


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    def write(result: Any, name: str = "result.json") -> str:
        path = tmp_path / name
        path.write_text(result if isinstance(result, str) else json.dumps(result))
        return str(path)

    return write


@pytest.fixture(scope="session")
def every_part(portrait_result: dict[str, Any], advise_result: dict[str, Any]) -> list[Part]:
    results = [*map(serve_run, (1, 4, 16)), envelope_result(), ladder_result(), comparison_result(), portrait_result,
               advise_result, step_load_result(), steps_result(1), steps_result(4)]  # fmt: skip
    return [part for number, result in enumerate(results) for part in parts_of(result, f"{number}.json")]


@pytest.fixture(scope="session")
def every_page(every_part: list[Part]) -> str:
    return build_page(every_part)


@pytest.fixture
def make_serve() -> Callable[..., dict[str, Any]]:
    return serve_run


@pytest.fixture
def make_envelope() -> Callable[..., dict[str, Any]]:
    return envelope_result


@pytest.fixture
def make_ladder() -> Callable[..., dict[str, Any]]:
    return ladder_result


@pytest.fixture
def make_comparison() -> Callable[..., dict[str, Any]]:
    return comparison_result


@pytest.fixture
def make_step_load() -> Callable[..., dict[str, Any]]:
    return step_load_result


@pytest.fixture
def make_steps() -> Callable[..., dict[str, Any]]:
    return steps_result


@pytest.fixture
def nasty() -> str:
    return NASTY
