"""Tiny Llamas on disk with a tokenizer of bytes, and texts for them: for the rooms that compare and quantise models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from threefold.models.registry import spec_from_config
from threefold.models.shapes import expected_shapes

VOCAB = 257
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "dtype": "float32",
}
MakeModel = Callable[..., Path]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    def make(name: str = "model", seed: int = 7, spread: float = 0.3, words: str = "", **more: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = CONFIG | more
        spec = spec_from_config(config, name)
        generator = torch.Generator().manual_seed(seed)
        weights = {
            each: torch.ones(shape)
            if each.endswith("norm.weight")
            else spread * torch.randn(shape, generator=generator)
            for each, shape in expected_shapes(spec).items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
        byte_tokenizer(words).save(str(folder / "tokenizer.json"))
        return folder

    return make


def byte_tokenizer(order: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=order == "reversed")
    made = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate([*alphabet, "<end>"])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    def write(entries: Iterable[Any], name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in entries) + "\n")
        return path

    return write


@pytest.fixture
def texts(write_lines: Callable[..., Path]) -> Path:
    """Twelve answers."""
    return write_lines(
        {"prompt": f"what is {at} times {at}?", "output": f"it is {at * at}, I think"} for at in range(12)
    )
