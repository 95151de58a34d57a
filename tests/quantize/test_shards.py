import json

import pytest
import torch
from safetensors.torch import load_file

from threefold.errors import ConfigError
from threefold.quantize.shards import ShardWriter


def test_one_file_needs_no_index(tmp_path):
    writer = ShardWriter(tmp_path)
    writer.add("a", torch.arange(4.0))
    writer.add("b", torch.ones(2, 3).T)
    assert writer.finish() == 4 * 4 + 6 * 4
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    assert load_file(tmp_path / "model.safetensors")["b"].shape == (3, 2)


def test_several_files_have_an_index(tmp_path):
    writer = ShardWriter(tmp_path, max_bytes=40)
    tensors = {f"t{at}": torch.full((5,), float(at)) for at in range(5)} | {"large": torch.zeros(100)}
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    assert writer.finish() == 5 * 20 + 400
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 500}
    assert set(index["weight_map"]) == set(tensors)
    names = {"model.safetensors.index.json", *(f"model-{at:05d}-of-00004.safetensors" for at in range(1, 5))}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    writer = ShardWriter(tmp_path / "nowhere")
    writer.add("a", torch.zeros(1))
    with pytest.raises(ConfigError, match="cannot write it"):
        writer.finish()
