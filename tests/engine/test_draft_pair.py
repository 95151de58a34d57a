"""A draft model beside its target: what is refused, what is said, and that nothing but time depends on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from threefold.config import CacheConfig, EngineConfig, ModelConfig, SpeculationConfig
from threefold.cost import CostCurve
from threefold.engine.build import build_engine, load_engine
from threefold.engine.core import EngineCore
from threefold.engine.draft_pair import Trial, try_out
from threefold.errors import ConfigError
from threefold.request import Request, SamplingParams

VOCAB = 300


def write_model(folder: Path, *, layers: int, heads: int, kv_heads: int, word: str = "w") -> str:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 32 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocab = {f"{word}{i}": i for i in range(VOCAB)}
    Tokenizer(models.WordLevel(vocab, unk_token=f"{word}0")).save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def config_of(target: str, draft: str, **speculation: object) -> EngineConfig:
    asked = SpeculationConfig(methods=("draft_model",), draft_model=draft, num_speculative_tokens=4)
    return EngineConfig(
        model=ModelConfig(model=target, load_format="dummy", dtype="float32"),
        cache=CacheConfig(num_blocks=64),
        speculation=replace(asked, **speculation),
    )


def run(core: EngineCore) -> list[list[int]]:
    answers: dict[int, list[int]] = {i: [] for i in range(1, 4)}
    for i in answers:
        params = SamplingParams(temperature=0.0, max_tokens=30)
        prompt = [7 * i + j for j in range(10 + i)]
        core.add_request(Request(i, prompt, params, max_total_tokens=40 + i, end_token_ids=frozenset()))
    while core.has_work:
        for delta in core.step():
            answers[delta.request_id] += delta.token_ids
        core.scheduler.check_integrity()
    return list(answers.values())


def test_a_pair_says_what_its_trial_came_to_and_answers_as_without(home: Path) -> None:
    target = write_model(home / "target", layers=4, heads=4, kv_heads=4)
    draft = write_model(home / "draft", layers=2, heads=2, kv_heads=1)
    synthetic = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": (0.9, 0.5, 0.3, 0.1)}
    built = build_engine(config_of(target, draft, is_adaptive=False))

    assert any(
        note.startswith("draft model ") and "in a trial on the engine's own text" in note for note in built.info.notes
    )
    expected = run(build_engine(replace(config_of(target, draft), speculation=SpeculationConfig(methods=()))).core)
    assert run(built.core) == expected
    decreed = build_engine(config_of(target, draft, is_adaptive=False, **synthetic))
    run(decreed.core)
    assert decreed.core.stats().drafted_by["draft_model"] > 0
    assert not any("trial" in note for note in decreed.info.notes)


def test_a_draft_model_of_another_family_is_refused_with_what_differs(home: Path) -> None:
    target = write_model(home / "target", layers=4, heads=4, kv_heads=4)
    other = write_model(home / "other", layers=2, heads=2, kv_heads=1, word="x")

    with pytest.raises(ConfigError, match=r"draft '.*other' shares 0 % of token strings with target .*not the same"):
        build_engine(config_of(target, other))


def test_a_draft_model_as_large_as_its_target_is_refused(home: Path) -> None:
    target = write_model(home / "target", layers=2, heads=4, kv_heads=2)
    large = write_model(home / "large", layers=3, heads=4, kv_heads=2)

    with pytest.raises(ConfigError, match="must be much smaller than its target"):
        build_engine(config_of(target, large))


def test_speculation_takes_no_block_and_no_row(home: Path) -> None:
    target = write_model(home / "target", layers=4, heads=4, kv_heads=4)
    draft = write_model(home / "draft", layers=2, heads=2, kv_heads=1)
    with_draft = build_engine(config_of(target, draft)).info
    without = build_engine(replace(config_of(target, draft), speculation=SpeculationConfig(methods=()))).info

    assert (with_draft.num_blocks, with_draft.max_num_seqs) == (without.num_blocks, without.max_num_seqs)
    assert with_draft.max_model_len == without.max_model_len


def test_a_trial_counts_what_came_true(home: Path) -> None:
    target = write_model(home / "target", layers=4, heads=4, kv_heads=4)
    draft = write_model(home / "draft", layers=2, heads=2, kv_heads=1)
    loaded = load_engine(config_of(target, draft))

    assert loaded.trial is not None
    assert loaded.trial.max_draft == 4
    assert loaded.trial.draft_ms > 0
    assert 0 <= loaded.trial.accepted <= 4


class Oracle:
    """Knows the text."""

    def __init__(self, text: list[int]) -> None:
        self.text, self.known = text, 0

    def start(self, request_id: int, token_ids: list[int], salt: str) -> None:
        self.known = len(token_ids)

    def observe(self, request_id: int, token_ids: list[int]) -> None:
        self.known += len(token_ids)

    def lend(self, request_id: int, block_ids: range) -> None:
        pass

    def stop(self, request_id: int) -> None:
        pass

    def propose(self, wanted: dict[int, int]) -> dict[int, object]:
        from threefold.draft.drafter import Draft

        right = self.text[self.known : self.known + wanted[0] - 1]
        return {0: Draft([*right, -1], (0.9,) * (len(right) + 1))}


def test_the_verdict_follows_from_what_was_accepted_and_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    text = list(range(50))
    trial = try_out(Oracle(text), text, 10, 4, num_blocks=9)  # type: ignore[arg-type]
    assert trial.accepted == 3.0

    curve = CostCurve([(1, 10.0), (8, 10.0)])
    good = trial._replace(draft_ms=2.0).reason(curve)
    assert good.value == "3.33 × for one user"
    assert not caplog.records
    Trial(accepted=0.5, draft_ms=10.0, max_draft=4).reason(curve)
    assert "would slow one user down to 0.75" in caplog.text
