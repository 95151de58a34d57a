"""The one door: folders and GGUF files of the same model give the same tensors; what is broken is said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from threefold.errors import ModelLoadError
from threefold.models.checkpoint import open_checkpoint, read_generation_defaults
from threefold.models.fetch import fetch_default_model
from threefold.models.shapes import expected_shapes

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_transformers_model_is_read_whole(name: str, hf_folder: Callable[..., Any]) -> None:
    folder, weights = hf_folder(name)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.storage == "safetensors"
    assert checkpoint.spec.dtype == "bfloat16"
    read = dict(checkpoint.tensors())
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[key], weight) for key, weight in weights.items())
    assert checkpoint.weights_bytes == sum(weight.numel() * 2 for weight in weights.values())


def test_shards_as_transformers_writes_them(hf_folder: Callable[..., Any]) -> None:
    folder, weights = hf_folder("Qwen2ForCausalLM", shard_size="30KB", tie_word_embeddings=True)
    assert len(list(folder.glob("*.safetensors"))) > 2
    read = dict(open_checkpoint(folder, "safetensors").tensors(torch.float32))
    assert all(torch.equal(read[key], weight.float()) for key, weight in weights.items())


def test_a_gguf_of_the_same_model_gives_the_same_tensors(
    hf_folder: Callable[..., Any],
    to_gguf_tensors: Callable[..., Any],
    write_gguf: Callable[..., Path],
    gguf_metadata: Callable[..., dict[str, Any]],
) -> None:
    folder, weights = hf_folder("LlamaForCausalLM")
    path = write_gguf(gguf_metadata(), to_gguf_tensors(weights, "llama"))
    ours, theirs = open_checkpoint(path), open_checkpoint(folder)
    assert ours.storage == "GGUF F32"
    first, second = dict(ours.tensors(torch.float32)), dict(theirs.tensors(torch.float32))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (ours.spec.head_dim, ours.spec.num_kv_heads) == (theirs.spec.head_dim, theirs.spec.num_kv_heads)


def test_dummy_needs_a_config_alone(tmp_path: Path, config: dict[str, Any], tiny_gguf: Callable[..., Path]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(tmp_path, "dummy", seed=3)
    assert checkpoint.storage == "dummy"
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors()}
    assert shapes == expected_shapes(checkpoint.spec)
    path = tiny_gguf()
    shapes = {name: tuple(tensor.shape) for name, tensor in open_checkpoint(path, "dummy").tensors()}
    assert shapes == expected_shapes(open_checkpoint(path).spec)


def test_a_silent_config_takes_the_files_type(save_folder: Callable[..., Path], config: dict[str, Any]) -> None:
    from threefold.models.registry import spec_from_config

    shapes = expected_shapes(spec_from_config(config))
    weights = {name: torch.ones(shape, dtype=torch.float16) for name, shape in shapes.items()}
    checkpoint = open_checkpoint(save_folder(weights))
    assert checkpoint.spec.dtype == "float16"
    assert all(tensor.dtype == torch.float16 for _, tensor in checkpoint.tensors())
    assert open_checkpoint(save_folder(weights, torch_dtype="float32")).spec.dtype == "float32"


def test_generation_config(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}))
    assert open_checkpoint(tmp_path, "dummy").generation_defaults == {}
    generation = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": True, "eos_token_id": [5, 2]}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    checkpoint = open_checkpoint(tmp_path, "dummy")
    assert checkpoint.generation_defaults == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert checkpoint.spec.eos_token_ids == (2, 5)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: temperature must be a number; got 'hot'"):
        read_generation_defaults(tmp_path)


def test_sampling_defaults_of_a_gguf(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf(**{"general.sampling.temp": 0.5, "general.sampling.top_k": 20})
    assert open_checkpoint(path).generation_defaults == {"temperature": 0.5, "top_k": 20}


def test_tokenizer_facts(tmp_path: Path, config: dict[str, Any], tiny_gguf: Callable[..., Path]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path, "dummy").tokenizer_facts == tmp_path
    path = tiny_gguf(**{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]})
    facts = open_checkpoint(path).tokenizer_facts
    assert facts == {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}


def test_formats_and_paths_that_do_not_go_together(tmp_path: Path, tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    with pytest.raises(ModelLoadError, match="load format 'pt' is unknown; known: auto, safetensors, gguf, dummy"):
        open_checkpoint(path, "pt")
    with pytest.raises(ModelLoadError, match="load format safetensors needs a folder"):
        open_checkpoint(path, "safetensors")
    with pytest.raises(ModelLoadError, match="load format gguf needs a GGUF file"):
        open_checkpoint(tmp_path, "gguf")
    with pytest.raises(ModelLoadError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(ModelLoadError, match=r"config\.json: cannot be read"):
        open_checkpoint(tmp_path)


@pytest.mark.model
def test_the_default_model() -> None:
    checkpoint = open_checkpoint(fetch_default_model())
    assert checkpoint.storage == "GGUF Q4_1"
    assert checkpoint.spec.num_parameters == 134_515_008
    assert checkpoint.weights_bytes == 269_030_016
    tensors = dict(checkpoint.tensors())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert 0.01 < float(np.std(tensors["model.embed_tokens.weight"].float().numpy())) < 1


def test_a_gguf_file_stays_packed_where_products_read_it_so(
    tiny_gguf: Callable[..., Path], random_weights: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values, _ = random_weights()["blk.0.ffn_down.weight"]
    checkpoint = open_checkpoint(tiny_gguf({"blk.0.ffn_down.weight": (values, Kind.Q8_0)}))
    cpu = torch.device("cpu")
    monkeypatch.setattr("threefold.models.gguf.has_packed_products", lambda dtype, device: device == cpu)

    packed = checkpoint.kept_packed(torch.bfloat16, cpu)

    assert packed.spec.quantization is not None and packed.spec.quantization.kind == "gguf"
    assert "model.layers.0.mlp.down_proj.numbers" in dict(packed.tensors(torch.bfloat16))
    assert checkpoint.kept_packed(torch.bfloat16, torch.device("cuda")).spec.quantization is None


def test_a_folder_has_nothing_that_stays_packed(hf_folder: Callable[..., Any]) -> None:
    folder, _ = hf_folder("LlamaForCausalLM")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.kept_packed(torch.bfloat16, torch.device("cpu")) is checkpoint
