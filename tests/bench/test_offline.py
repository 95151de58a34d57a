"""The offline load on an engine without a model."""

import pytest

from threefold.bench import offline
from threefold.bench.fake_engine import build
from threefold.bench.load_options import LoadOptions
from threefold.bench.prompt import Prompt
from threefold.bench.workload import Workload
from threefold.config import EngineConfig
from threefold.engine.loop import BuiltEngine
from threefold.request import Request
from threefold.testing.byte_tokenizer import ByteTokenizer

WORKLOAD = Workload(tuple(Prompt(f"prompt {index}", "qa") for index in range(10)), 10, "x.jsonl", "abc", "all")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> BuiltEngine:
    built = build({"max_num_seqs": 16})
    monkeypatch.setattr(offline, "build_engine", lambda config: built)
    monkeypatch.setattr(offline, "make_tokenizer", lambda info: ByteTokenizer())
    return built


def test_the_same_keys_as_over_http(engine: BuiltEngine) -> None:
    load = LoadOptions(max_tokens=12, ignore_eos=True, concurrency=4, num_warmups=2, goodput=("ttft:60000",))
    result = offline.bench_offline(WORKLOAD, load, EngineConfig())
    assert (result["completed"], result["failed"], result["num_interrupted"]) == (10, 0, 0)
    assert result["total_output_tokens"] == 120
    assert result["max_concurrent_requests"] == 4
    assert result["request_goodput"] > 0
    assert result["mean_tpot_ms"] > 0
    assert result["endpoint_type"] == "offline"
    assert engine.core.stats().num_held_blocks == 0


def test_all_at_once_unless_said(engine: BuiltEngine) -> None:
    result = offline.bench_offline(WORKLOAD, LoadOptions(max_tokens=4, ignore_eos=True), EngineConfig())
    assert result["max_concurrency"] == result["max_concurrent_requests"] == 10


def test_each_prompt_has_its_own_length_and_seed(engine: BuiltEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, add_request = [], engine.core.add_request

    def added(request: Request) -> None:
        asked.append((request.params.max_tokens, request.params.seed, request.params.ignore_eos))
        add_request(request)

    monkeypatch.setattr(engine.core, "add_request", added)
    prompts = (Prompt("a", max_tokens=3), Prompt("b"), Prompt("c", max_tokens=3))
    load = LoadOptions(max_tokens=4, ignore_eos=True, shuffle_seed=7)
    result = offline.bench_offline(Workload(prompts, 3, "x", "y", "all"), load, EngineConfig())
    assert asked == [(3, 7, True), (4, 8, True), (3, 9, True)]
    assert result["total_output_tokens"] == 10


def test_a_prompt_that_does_not_fit_fails_alone(engine: BuiltEngine) -> None:
    workload = Workload((Prompt("x" * 9000), *WORKLOAD.prompts), 11, "x", "y", "all")
    result = offline.bench_offline(workload, LoadOptions(max_tokens=4, ignore_eos=True), EngineConfig())
    assert (result["completed"], result["failed"]) == (10, 1)
    assert "context holds 8192" in next(iter(result["failures"]))


def test_ctrl_c_keeps_what_was_measured(engine: BuiltEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    step, steps = engine.core.step, iter(range(1000))

    def interrupted() -> list:
        if next(steps) == 20:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(engine.core, "step", interrupted)
    result = offline.bench_offline(WORKLOAD, LoadOptions(max_tokens=12, ignore_eos=True, concurrency=4), EngineConfig())
    assert 0 < result["completed"] < 10
    assert result["num_interrupted"] > 0
    assert engine.core.stats().num_held_blocks == 0
