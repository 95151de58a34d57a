"""Which quantisation an engine gets by what was asked and what is stored, and that it runs so from end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from threefold.config import CacheConfig, EngineConfig, ModelConfig, SpeculationConfig
from threefold.engine.build import build_engine, plan_only
from threefold.engine.core import EngineCore
from threefold.engine.opened import as_kept, open_engine, weights_bytes
from threefold.errors import ConfigError, OperatorError
from threefold.request import Request, SamplingParams

VOCAB = 300
FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [32, 32]}
OFF = SpeculationConfig(methods=())


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))


def write_model(folder: Path, layers: int = 2, heads: int = 4, **more: Any) -> str:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": 32 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config | more))
    vocab = {f"w{i}": i for i in range(VOCAB)}
    Tokenizer(models.WordLevel(vocab, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return str(folder)


def config_of(model: str, quantization: str | None = None, speculation: SpeculationConfig = OFF) -> EngineConfig:
    asked = ModelConfig(model=model, load_format="dummy", dtype="float32", quantization=quantization)
    return EngineConfig(model=asked, cache=CacheConfig(num_blocks=64), speculation=speculation)


def answer(core: EngineCore) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=12)
    core.add_request(Request(1, list(range(20)), params, max_total_tokens=32, end_token_ids=frozenset()))
    return [token_id for _ in range(40) if core.has_work for delta in core.step() for token_id in delta.token_ids]


def test_a_plain_model_becomes_fp8_while_it_is_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "plain")
    plain, fp8 = open_engine(config_of(folder)), open_engine(config_of(folder, "fp8"))
    assert plain.spec.quantization is None
    assert fp8.spec.quantization is not None and fp8.spec.quantization.is_made_here
    assert weights_bytes(plain) == weights_bytes(fp8) == plain.spec.num_parameters * 4  # a CPU has no FP8 products

    built = build_engine(config_of(folder, "fp8"))
    assert any("quantization fp8" in note and "weights become float32" in note for note in built.info.notes)
    assert len(answer(built.core)) == 12


@pytest.mark.parametrize("asked", [None, "fp8"])
def test_a_quantised_checkpoint_is_loaded_as_it_is(tmp_path: Path, asked: str | None) -> None:
    config = config_of(write_model(tmp_path / "blocks", quantization_config=FP8_BLOCK), asked)
    quantization = open_engine(config).spec.quantization
    assert quantization is not None and quantization.strategy == "block"
    assert "fp8 by block" in plan_only(config)
    assert len(answer(build_engine(config).core)) == 12


@pytest.mark.parametrize(
    ("section", "is_on_card", "is_on_cpu"),
    [
        (FP8_BLOCK, True, False),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, True, False),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, True, False),
        (None, False, False),
    ],
)
def test_embedding_and_head_in_eight_bits(
    tmp_path: Path, section: dict[str, Any] | None, is_on_card: bool, is_on_cpu: bool
) -> None:
    config = config_of(write_model(tmp_path / "model", quantization_config=section))
    checkpoint = open_engine(config).checkpoint

    def has_int8_tables(device: str, dtype: torch.dtype, asked: str = "auto") -> bool:
        wanted = replace(config.model, quantize_embeddings=asked)
        quantization = as_kept(checkpoint, wanted, dtype, torch.device(device)).spec.quantization
        return quantization is not None and quantization.has_int8_tables

    assert has_int8_tables("cuda", torch.bfloat16) == has_int8_tables("cuda", torch.float16) == is_on_card
    assert has_int8_tables("cpu", torch.bfloat16) == is_on_cpu
    assert not has_int8_tables("cuda", torch.float32)  # who asks for it asks for its precision
    assert not has_int8_tables("cuda", torch.bfloat16, "none")


@pytest.mark.parametrize(("asked", "is_rounded"), [("auto", True), ("none", False)])
def test_tables_of_weights_quantised_while_loading(tmp_path: Path, asked: str, is_rounded: bool) -> None:
    config = config_of(write_model(tmp_path / "plain"), "fp8")
    config = replace(config, model=replace(config.model, quantize_embeddings=asked))
    quantization = open_engine(config).spec.quantization
    assert quantization is not None and quantization.has_int8_tables is is_rounded
    assert ("embedding and head int8" in plan_only(config)) is is_rounded
    assert "GiB, 1.00 of float32's" in plan_only(config)  # a CPU multiplies with neither
    assert len(answer(build_engine(config).core)) == 12


def test_the_tools_own_word_is_accepted_too(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "fbgemm", quantization_config={"quant_method": "fbgemm_fp8"})
    assert open_engine(config_of(folder, "fbgemm_fp8")).spec.quantization is not None


@pytest.mark.parametrize(
    ("section", "asked", "said"),
    [
        (FP8_BLOCK, "awq", r"--quantization awq: the checkpoint is quantised already, as fp8 \(fp8 by block\); leave"),
        (None, "awq", "--quantization awq needs a checkpoint that is stored so, and .* is not; fp8 can be made while"),
        (None, "gguf", "--quantization gguf needs a checkpoint that is stored so"),
    ],
)
def test_another_kind_is_refused(tmp_path: Path, section: dict[str, Any] | None, asked: str, said: str) -> None:
    folder = write_model(tmp_path / "model", quantization_config=section)
    with pytest.raises(ConfigError, match=said):
        open_engine(config_of(folder, asked))


def test_a_plain_draft_model_beside_a_quantised_target(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", layers=4)
    draft = write_model(tmp_path / "draft", layers=1, heads=2)
    asked = SpeculationConfig(("draft_model",), 4, is_adaptive=False, draft_model=draft)
    drafted = config_of(target, "fp8", asked)
    opened = open_engine(drafted)
    assert opened.draft is not None and opened.draft.checkpoint.spec.quantization is None

    assert answer(build_engine(drafted).core) == answer(build_engine(replace(drafted, speculation=OFF)).core)


@pytest.mark.parametrize("wrong", ["nope", "/nowhere", "."])
def test_sampling_defaults_that_are_not_there_are_said_before_anything_is_read(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--generation-config .*: there is no folder of this name with a"):
        open_engine(EngineConfig(model=ModelConfig(model="/nowhere/either", generation_config=wrong)))
    (tmp_path / "generation_config.json").write_text("{}")
    with pytest.raises(OperatorError, match="/nowhere/either"):
        open_engine(EngineConfig(model=ModelConfig(model="/nowhere/either", generation_config=str(tmp_path))))
