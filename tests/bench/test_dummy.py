"""Folders that --load-format dummy takes as models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from threefold.bench.dummy import SHAPES, write_dummy
from threefold.errors import ConfigError
from threefold.models.checkpoint import open_checkpoint
from threefold.models.shapes import kept_bytes
from threefold.text.pairing import difference
from threefold.text.tokenizer import Tokenizer


@pytest.mark.parametrize(("shape", "parameters"), [("qwen3-8b", 8.19e9), ("qwen3-0.6b", 0.596e9), ("small", 0.0818e9)])
def test_a_shape_opens_as_the_model_it_is_named_after(tmp_path: Path, shape: str, parameters: float) -> None:
    spec = open_checkpoint(write_dummy(shape, tmp_path / shape), "dummy", 0).spec

    assert spec.num_parameters == pytest.approx(parameters, rel=0.01)
    assert spec.vocab_size == SHAPES[shape]["vocab_size"]


def test_any_text_has_tokens_and_comes_back(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_path(write_dummy("small", tmp_path))
    text = "Zwölf Boxkämpfer jagen Viktor 🦊\n\tquer über den Deich"

    token_ids = tokenizer.encode(text)
    assert len(token_ids) == len(text.encode())
    assert tokenizer.decode(token_ids) == text
    assert tokenizer.eos_token_ids == (8191,)


def test_a_pair_speaks_one_language(tmp_path: Path) -> None:
    pair = [Tokenizer.from_path(write_dummy(shape, tmp_path / shape)) for shape in ("small", "small-draft")]

    assert difference(*pair) is None


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no dummy model 'gpt-5'; there are qwen3-8b"):
        write_dummy("gpt-5", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to"):
        write_dummy("small", tmp_path / "file")


@pytest.mark.parametrize(("kind", "read"), [("awq", "awq"), ("gptq", "gptq"), ("compressed-tensors", "packed_int4")])
def test_a_quantised_shape_opens_as_its_kind(tmp_path: Path, kind: str, read: str) -> None:
    checkpoint = open_checkpoint(write_dummy("qwen3-8b", tmp_path, kind), "dummy", 0)

    quantization = checkpoint.spec.quantization
    assert quantization is not None
    assert (quantization.kind, quantization.bits, quantization.group_size) == (read, 4, 128)
    taken = kept_bytes(checkpoint.spec, torch.bfloat16, torch.device("cuda"))
    heads = 2 * 151936 * 4096 * 2  # embedding and head stay plain
    assert taken - heads == pytest.approx(0.266 * (2 * checkpoint.spec.num_parameters - heads), rel=0.01)
