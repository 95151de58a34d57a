"""Quantised models that cannot be served, as an operator meets them: words of a command, one line, exit code 2."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from threefold import cli
from threefold.engine import opened
from threefold.errors import ModelLoadError
from threefold.models.registry import spec_from_config
from threefold.models.shapes import expected_shapes

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
COMPRESSED = {"quant_method": "compressed-tensors"}
Ask = Callable[..., str]


@pytest.fixture
def ask(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What is said to somebody who wants this model; `quality` opens it in this process."""
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))

    def said(*words: object) -> str:
        code = cli.main(["quality", *map(str, words), "--data", str(texts)])
        error = capsys.readouterr().err
        assert code == 2
        lines = [line for line in error.splitlines() if not line.startswith("comparing")]
        assert len(lines) == 1
        return lines[0]

    return said


@pytest.fixture
def make_quantised(make_model: Callable[..., Path]) -> Callable[..., Path]:
    """A model whose configuration has this section, with random tensors that fit it."""

    def make(section: Any, **more: Any) -> Path:
        folder = make_model(**more)
        config = json.loads((folder / "config.json").read_text()) | {"quantization_config": section}
        (folder / "config.json").write_text(json.dumps(config))
        with suppress(ModelLoadError):  # of a section that cannot hold no tensor is ever read
            shapes = expected_shapes(spec_from_config(config)).items()
            save_file({name: random_tensor(name, shape) for name, shape in shapes}, folder / "model.safetensors")
        return folder

    return make


def random_tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name.endswith("g_idx"):
        return torch.arange(shape[0], dtype=torch.int32).flip(0) // 32
    is_words = name.endswith(("qweight", "qzeros"))
    return torch.randint(0, 2**31, shape, dtype=torch.int32) if is_words else torch.rand(shape)


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt NVFP4"),
        ({"quant_method": "exl2", "bits": 4.0}, "exl2"),
        ({"quant_method": "hqq"}, "hqq"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "torchao"}, "torchao"),
        (COMPRESSED | {"format": "nvfp4-pack-quantized"}, "compressed-tensors nvfp4-pack-quantized"),
        (COMPRESSED | {"format": "int-quantized"}, "compressed-tensors int-quantized"),
        ({"bits": 4}, "an unnamed scheme"),
    ],
)
def test_kinds_that_are_not_built(section: dict[str, Any], kind: str, make_quantised: Any, ask: Ask) -> None:
    line = ask(*2 * [make_quantised(section)])
    assert f"weights quantised by {kind} are not supported; built are fp8, " in line
    assert "or use the model's unquantised safetensors" in line


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("awq", "quantization_config must be an object; got 'awq'"),
        (AWQ | {"bits": 8}, "bits must be 4"),
        (AWQ | {"group_size": 48}, "group_size must be 32, 64 or 128"),
        (AWQ | {"group_size": 64}, "groups of 64 do not divide 96 inputs"),
        (GPTQ, "g_idx: inputs are stored in an order of their own (desc_act), which is not built"),
    ],
)
def test_forms_that_are_not_built(section: Any, words: str, make_quantised: Any, ask: Ask) -> None:
    assert words in ask(*2 * [make_quantised(section)])


@pytest.mark.parametrize(
    ("section", "flags", "words"),
    [
        (None, ["--quantization", "awq"], "--quantization awq needs a checkpoint that is stored so"),
        (AWQ, ["--quantization", "gptq"], "the checkpoint is quantised already, as awq (awq); leave the flag out"),
        (None, ["--quantization", "bitsandbytes"], "known to vLLM, not built in Threefold yet; what works: none, fp8"),
        (None, ["--quantization", "int3"], "wants one of none, fp8"),
        (None, ["--kv-cache-dtype", "fp8", "--device", "cpu"], "--kv-cache-dtype fp8 needs a card"),
        (None, ["--kv-cache-dtype", "fp8_e5m2"], "not built in Threefold yet; what works: auto, fp8, fp8_e4m3"),
    ],
)
def test_flags_that_do_not_fit(section: Any, flags: list[str], words: str, make_quantised: Any, ask: Ask) -> None:
    assert words in ask(*2 * [make_quantised(section)], *flags)


def test_a_card_without_fp8(make_model: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    old_card = SimpleNamespace(is_gpu=True, supports_fp8=False)
    monkeypatch.setattr(opened, "open_device", lambda *asked: old_card)
    line = ask(*2 * [make_model()], "--quantization", "fp8")
    assert "this card has no FP8 numbers, which come with compute capability 8.9; use the unquantised model" in line


def test_half_copied(make_quantised: Any, ask: Ask) -> None:
    folder = make_quantised(AWQ)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for size in (len(whole) // 2, 40, 4):
        path.write_bytes(whole[:size])
        assert str(path) in ask(folder, folder)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
    assert f"{path}: a Git LFS pointer in place of the file" in ask(folder, folder)
    path.unlink()
    assert str(folder) in ask(folder, folder)


def test_scales_that_are_not_there(make_quantised: Any, ask: Ask) -> None:
    folder = make_quantised(AWQ)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_file(tensors, folder / "model.safetensors")
    assert "1 tensors (model.layers.1.mlp.up_proj.scales) missing" in ask(folder, folder)


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_quantised_by_a_file_that_is_not_read(name: str, make_quantised: Any, ask: Ask) -> None:
    folder = make_quantised(AWQ)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / name).write_text("{}")
    assert f"missing; the file set is incomplete or of another model; {name} says that" in ask(folder, folder)
