"""What an engine says of its latency targets before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from threefold.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SloConfig, SpeculationConfig
from threefold.cost import CostCurve
from threefold.engine.build import build_engine
from threefold.engine.targets import foretold
from threefold.request import Request, SamplingParams
from threefold.schedule.slo import Slo

KNOTS = [(1, 10.0), (8, 11.0), (64, 32.0), (512, 200.0)]


def said(**targets: float) -> str:
    return foretold(Slo(CostCurve(KNOTS), targets), targets, 64, 512)


def test_what_the_machine_can_do() -> None:
    assert said(tpot=1000.0) == "up to 64 running requests of 512 tokens"
    assert "up to 64 running" not in said(tpot=25.0)
    both = said(ttft=225.0, tpot=25.0)
    assert "running requests of 512 tokens, alone on the machine prompts of up to 512 tokens keep ttft" in both


def test_targets_that_cannot_be_met_are_told_with_the_best() -> None:
    assert said(tpot=5.0).startswith("one request alone takes 11.0 ms a token, so tpot is held at 16.5 ms, up to ")
    assert said(ttft=5.0) == "alone on the machine no prompt, for one token takes 11.0 ms keep ttft"


@pytest.mark.parametrize("targets", [{"ttft": 50.0}, {"tpot": 50.0}])
def test_one_target_speaks_of_itself_alone(targets: dict[str, float]) -> None:
    assert ("running requests" in said(**targets)) == ("tpot" in targets)
    assert ("prompts" in said(**targets)) == ("ttft" in targets)


def write_model(folder: Path) -> str:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 32,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {f"w{i}": i for i in range(64)}
    Tokenizer(models.WordLevel(vocab, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize("methods", [(), ("ngram",)])
def test_an_engine_holds_targets_with_and_without_speculation(
    methods: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    config = EngineConfig(
        model=ModelConfig(model=write_model(tmp_path), load_format="dummy", dtype="float32"),
        cache=CacheConfig(num_blocks=64),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32),
        speculation=SpeculationConfig(methods=methods),
        slo=SloConfig((("ttft", 1e6), ("tpot", 1e6))),
    )
    built = build_engine(config)
    (note,) = [note for note in built.info.notes if note.startswith("slo")]
    assert "ttft 1e+06 ms, tpot 1e+06 ms: up to 4 running requests" in note
    assert ("step costs above" in note) == bool(methods)
    core = built.core
    params = SamplingParams(temperature=0.0, max_tokens=6)
    core.add_request(Request(1, [5, 6, 7] * 20, params, max_total_tokens=66, end_token_ids=frozenset()))
    tokens = [token_id for _ in range(40) if core.has_work for delta in core.step() for token_id in delta.token_ids]
    assert len(tokens) == 6
    stats = core.stats().slo
    assert stats is not None
    assert (stats.num_shed, stats.tpot_attained) == (0, 1.0)
    core.close()


def test_without_targets_nothing_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    asked = ModelConfig(model=write_model(tmp_path), load_format="dummy", dtype="float32")
    off = SpeculationConfig(methods=())
    small = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32)
    built = build_engine(EngineConfig(model=asked, cache=CacheConfig(num_blocks=64), scheduler=small, speculation=off))
    assert built.core.stats().slo is None
    assert not [note for note in built.info.notes if note.startswith("slo")]
    assert not (tmp_path / "cache" / "curves").exists(), "no curve was measured for nothing"
    built.core.close()
