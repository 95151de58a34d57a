"""safetensors folders, whole and broken, and random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from threefold.errors import ModelLoadError
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.models.weights import DummyWeights, SafetensorsWeights

SPEC = ModelSpec("LlamaForCausalLM", 160, 64, 2, 4, 2, 16, 96, 256)


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in expected_shapes(SPEC).items()}


@pytest.fixture
def sharded(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    names = list(weights)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, tmp_path / file)
    table = {name: file for file, held in parts.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return tmp_path


def rewrite_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    change(content["weight_map"])
    index.write_text(json.dumps(content))


def test_one_file_gives_each_tensor_once(weights: dict[str, torch.Tensor], save_folder: Callable[..., Path]) -> None:
    source = SafetensorsWeights(save_folder(weights), SPEC)
    assert source.stored_dtype == "bfloat16"
    read = list(source.read(torch.bfloat16))
    assert [name for name, _ in read] == list(expected_shapes(SPEC))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in read)


def test_shards_give_the_same_in_another_type(sharded: Path, weights: dict[str, torch.Tensor]) -> None:
    read = dict(SafetensorsWeights(sharded, SPEC).read(torch.float32))
    assert all(torch.equal(tensor, weights[name].float()) for name, tensor in read.items())
    assert all(tensor.dtype == torch.float32 for tensor in read.values())


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"b\.safetensors: the shard is missing"):
        SafetensorsWeights(sharded, SPEC)


@pytest.mark.parametrize(
    "name", ["../b.safetensors", "/etc/passwd", "sub/b.safetensors", "..\\b", 7, "", "..", "a\0.safetensors"]
)
def test_shards_outside_the_folder_are_refused(sharded: Path, name: Any) -> None:
    rewrite_index(sharded, lambda table: table.update({"model.norm.weight": name}))
    with pytest.raises(ModelLoadError, match="is not the name of a safetensors file within the folder"):
        SafetensorsWeights(sharded, SPEC)


def test_an_index_that_lies(sharded: Path) -> None:
    rewrite_index(sharded, lambda table: table.update({"model.norm.weight": "a.safetensors"}))
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight\) missing"):
        SafetensorsWeights(sharded, SPEC)
    rewrite_index(sharded, lambda table: table.clear())
    with pytest.raises(ModelLoadError, match="weight_map must be an object"):
        SafetensorsWeights(sharded, SPEC)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_files_end_in_one_line(
    data: st.DataObject, weights: dict[str, torch.Tensor], save_folder: Callable[..., Path]
) -> None:
    folder = save_folder(weights)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    head = 8 + int.from_bytes(content[:8], "little")
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for at in data.draw(st.lists(st.integers(0, head - 1), max_size=3)):
        if at < len(content):
            content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        assert len(dict(SafetensorsWeights(folder, SPEC).read(torch.float32))) == len(weights)
    except ModelLoadError as error:
        assert "\n" not in str(error)


def test_weights_of_another_type(weights: dict[str, torch.Tensor], save_folder: Callable[..., Path]) -> None:
    weights["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight is stored as I8; known types: BF16"):
        SafetensorsWeights(save_folder(weights), SPEC)


def test_a_folder_with_pickles_only(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"neither model\.safetensors nor .* is there$"):
        SafetensorsWeights(tmp_path, SPEC)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ModelLoadError, match="are never read, convert them"):
        SafetensorsWeights(tmp_path, SPEC)


def test_random_weights_are_complete_and_repeatable() -> None:
    spec = replace(SPEC, has_qkv_bias=True, has_qk_norm=True)
    once, again = dict(DummyWeights(spec, 5).read(torch.bfloat16)), dict(DummyWeights(spec, 5).read(torch.bfloat16))
    assert {name: tuple(tensor.shape) for name, tensor in once.items()} == expected_shapes(spec)
    assert all(torch.equal(tensor, again[name]) for name, tensor in once.items())
    other = dict(DummyWeights(spec, 6).read(torch.bfloat16))
    assert not torch.equal(once["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    q, o = (once[f"model.layers.0.self_attn.{name}.weight"] for name in ("q_proj", "o_proj"))
    assert not torch.equal(q, o)


def test_random_weights_keep_activations_in_size() -> None:
    spec = replace(SPEC, hidden_size=512, vocab_size=9000)  # larger than the table of numbers
    embedding = dict(DummyWeights(spec, 0).read(torch.float32))["model.embed_tokens.weight"]
    assert embedding.std().item() == pytest.approx(512**-0.5, rel=0.01)
    product = torch.randn(4, 512, generator=torch.Generator().manual_seed(0)) @ embedding.T
    assert product.std().item() == pytest.approx(1, rel=0.1)
    assert not torch.equal(embedding[0], embedding[4_194_301 // 512])


def test_a_generator_makes_what_a_card_would_make_for_itself() -> None:
    spec = replace(SPEC, has_qkv_bias=True, has_qk_norm=True, hidden_size=512)
    make = DummyWeights(spec, 5)._by_generator(torch.bfloat16, torch.device("cpu"))
    made = {name: make(name, shape) for name, shape in expected_shapes(spec).items()}
    again = DummyWeights(spec, 5)._by_generator(torch.bfloat16, torch.device("cpu"))
    for name, shape in reversed(expected_shapes(spec).items()):
        assert tuple(made[name].shape) == shape
        assert torch.equal(made[name], again(name, shape))
        if name.endswith("norm.weight"):
            assert torch.equal(made[name], torch.ones(shape, dtype=torch.bfloat16))
        elif name.endswith(".weight"):
            assert made[name].float().std().item() == pytest.approx(shape[1] ** -0.5, rel=0.05)
    q = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(
        made[q], DummyWeights(spec, 6)._by_generator(torch.bfloat16, torch.device("cpu"))(q, (64, 512))
    )
    assert not torch.equal(made[q], made["model.layers.1.self_attn.q_proj.weight"])


def test_numbers_of_a_cpu_stay_what_they_are() -> None:
    """Figures and tests elsewhere stand on them."""
    weights = dict(DummyWeights(SPEC, 0).read(torch.float32))
    assert weights["model.embed_tokens.weight"][0, :3].tolist() == pytest.approx(
        [-0.1353200, -0.1035208, 0.0985426], abs=1e-6
    )
