"""An FP8 KV cache from the flag to the kernels. No card here: the engine is told that this CPU may have one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models

from threefold.config import CacheConfig, EngineConfig, ModelConfig, SpeculationConfig
from threefold.engine import opened
from threefold.engine.build import load_engine
from threefold.engine.loaded import LoadedEngine
from threefold.engine.resolve import Facts, Limits, resolve_limits
from threefold.errors import ConfigError
from threefold.kernels.kv import FP8
from threefold.request import Request, SamplingParams

VOCAB = 300
MEMORY = 1 << 20


def write_model(folder: Path, layers: int, heads: int) -> str:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 32 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """Of a pair of models, drafts as often as they fit."""
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    speculation = SpeculationConfig(
        methods=("draft_model",),
        draft_model=write_model(tmp_path / "draft", 2, 1),
        num_speculative_tokens=3,
        is_adaptive=False,
    )
    return EngineConfig(
        model=ModelConfig(model=write_model(tmp_path / "target", 4, 4), load_format="dummy", dtype="float32"),
        cache=CacheConfig(kv_cache_memory_bytes=MEMORY),
        speculation=speculation,
    )


@pytest.fixture
def loaded_in_fp8(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> LoadedEngine:
    def resolve(config: EngineConfig, facts: Facts) -> Limits:
        return replace(resolve_limits(config, facts), kv_cache_dtype="float8_e4m3fn")

    monkeypatch.setattr(opened, "resolve_limits", resolve)
    return load_engine(config)


def answers(loaded: LoadedEngine, speculation: SpeculationConfig) -> list[list[int]]:
    core = loaded.core(speculation, loaded.policy(speculation)[0])
    found: dict[int, list[int]] = {i: [] for i in range(3)}
    for i in found:
        prompt, wish = [7 * i + j for j in range(20 + i)], SamplingParams(temperature=0.0, max_tokens=12)
        core.add_request(Request(i, prompt, wish, max_total_tokens=32 + i, end_token_ids=frozenset()))
    while core.has_work:
        for delta in core.step():
            found[delta.request_id] += delta.token_ids
        core.scheduler.check_integrity()
    return list(found.values())


def test_four_times_the_float32_blocks_fit_and_each_is_stored_in_a_byte_a_number(
    config: EngineConfig, loaded_in_fp8: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    plain = load_engine(config)

    assert 4 * plain.plan.num_blocks == loaded_in_fp8.plan.num_blocks
    assert {FP8} == {cache.keys.dtype for cache in loaded_in_fp8.kv}
    assert sum(cache.num_bytes for cache in loaded_in_fp8.kv) == sum(cache.num_bytes for cache in plain.kv)


def test_target_and_draft_model_have_scales_of_their_own_and_drafts_change_no_answer(
    config: EngineConfig, loaded_in_fp8: LoadedEngine
) -> None:
    draft = loaded_in_fp8.draft
    assert draft is not None
    scales = {id(cache.key_scale) for cache in (*loaded_in_fp8.kv, *draft.kv.caches)}
    assert 4 + 2 == len(scales)
    assert all(float(cache.key_scale) != 1 for cache in (*loaded_in_fp8.kv, *draft.kv.caches))
    assert draft.kv.caches[0].keys.dtype == FP8
    assert any(cache.values.view(torch.uint8).any() for cache in draft.kv.caches), "the trial drafted into lent blocks"

    with_drafts = answers(loaded_in_fp8, config.speculation)
    assert with_drafts == answers(loaded_in_fp8, replace(config.speculation, methods=()))


def test_on_a_cpu_it_is_refused_in_one_line(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype fp8 needs a card: .*; use auto"):
        load_engine(replace(config, cache=CacheConfig(kv_cache_dtype="fp8")))
