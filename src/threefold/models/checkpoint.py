"""A model on disk, opened: what it is, its weights one at a time, its tokenizer's facts and its sampling defaults.

The one door from files to tensors. Everything that can be wrong with the files is found when they are opened, before
memory is taken. Knows nothing about layers or devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from threefold.errors import ModelLoadError
from threefold.models.fields import Fields, read_json_object
from threefold.models.gguf import GgufWeights, spec_from_gguf, storage_kind
from threefold.models.gguf_file import read_gguf
from threefold.models.registry import spec_from_config
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.models.weights import DummyWeights, SafetensorsWeights, WeightSource

LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""Types that a model runs in, by the names that configs use."""
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_GGUF_DEFAULTS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_ELSEWHERE = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Where modelopt, AutoGPTQ and AutoAWQ once said what they did."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model."""

    path: Path
    """Folder or file it was opened from."""
    spec: ModelSpec
    """What the model is."""
    storage: str
    """How the weights are kept, for messages: safetensors, GGUF Q4_1, dummy."""
    source: WeightSource
    """Hands out the weights."""
    tokenizer_facts: Path | dict[str, Any]
    """What text.tokenizer builds from: the folder with tokenizer.json, or a GGUF file's `tokenizer.*` pairs."""
    generation_defaults: dict[str, float]
    """Sampling defaults that the model's makers recommend, by SamplingParams' names."""

    def tensors(
        self, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight once, under canonical names, embedding and head first.

        Args:
            dtype: wanted type; None = the spec's. A tensor stored in it may be a view of the mapped file: copy it, or
                keep the file.
            device: where the weights will be used; None = the CPU. For a card they come from pinned memory or are made
                there, where the source can do that, else from the CPU.

        Raises:
            ModelLoadError: a file became unreadable since it was opened.
        """
        wanted = DTYPES[self.spec.dtype] if dtype is None else dtype
        return self.source.read(wanted, torch.device("cpu") if device is None else device)

    def kept_packed(self, dtype: torch.dtype, device: torch.device) -> Checkpoint:
        """The same model, with weights that stay packed as a GGUF file has them, where products can read them so."""
        if not isinstance(self.source, GgufWeights) or self.spec.quantization is not None:  # to be quantised otherwise
            return self
        source = self.source.kept_packed(dtype, device)
        return replace(self, spec=source.spec, source=source)

    @property
    def plain_tokenizer_facts(self) -> dict[str, Any]:
        """The same as plain data, for `Tokenizer.from_facts` in whatever process."""
        facts = self.tokenizer_facts
        return {"folder": str(facts)} if isinstance(facts, Path) else {"gguf": dict(facts)}

    @property
    def weights_bytes(self) -> int:
        """Size of all weights in the spec's type."""
        num_values = sum(math.prod(shape) for shape in expected_shapes(self.spec).values())
        return num_values * DTYPES[self.spec.dtype].itemsize


def open_checkpoint(path: Path, load_format: str = "auto", seed: int = 0) -> Checkpoint:
    """Open a model and check its files.

    Args:
        path: a folder with config.json, or a GGUF file (models.locate finds it).
        load_format: auto = by what the path is; safetensors, gguf = that or an error; dummy = random weights.
        seed: of the random weights.

    Raises:
        ModelLoadError: one line that says what is wrong with the files and what would work.
    """
    if load_format not in LOAD_FORMATS:
        raise ModelLoadError(f"load format {load_format!r} is unknown; known: {', '.join(LOAD_FORMATS)}")
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file or folder")
    found = "safetensors" if path.is_dir() else "gguf"
    if load_format in ("safetensors", "gguf") and load_format != found:
        wanted = "a folder with safetensors files" if load_format == "safetensors" else "a GGUF file"
        raise ModelLoadError(f"{path}: load format {load_format} needs {wanted}")
    is_dummy = load_format == "dummy"
    return _open_folder(path, is_dummy, seed) if path.is_dir() else _open_gguf(path, is_dummy, seed)


def _open_folder(folder: Path, is_dummy: bool, seed: int) -> Checkpoint:
    config = read_json_object(folder / "config.json")
    spec = spec_from_config(config, str(folder / "config.json"))
    spec = replace(spec, eos_token_ids=_all_ends(spec, folder))
    source: WeightSource
    if is_dummy:
        source = DummyWeights(spec, seed)
    else:
        try:
            source = SafetensorsWeights(folder, spec)
        except ModelLoadError as error:
            raise ModelLoadError(f"{error}{_quantised_elsewhere(folder, spec)}") from error
        if config.get("dtype") is None and config.get("torch_dtype") is None:
            spec = replace(spec, dtype=source.stored_dtype)
    return Checkpoint(
        path=folder,
        spec=spec,
        storage="dummy" if is_dummy else "safetensors",
        source=source,
        tokenizer_facts=folder,
        generation_defaults=read_generation_defaults(folder),
    )


def _quantised_elsewhere(folder: Path, spec: ModelSpec) -> str:
    """What a folder says of its weights in a file that only older tools wrote and read."""
    said = [name for name in _ELSEWHERE if (folder / name).is_file()]
    if spec.quantization is not None or not said:
        return ""
    return f"; {said[0]} says that they are quantised, which only quantization_config in config.json is read for"


def _open_gguf(path: Path, is_dummy: bool, seed: int) -> Checkpoint:
    file = read_gguf(path)
    spec = spec_from_gguf(file)
    return Checkpoint(
        path=path,
        spec=spec,
        storage="dummy" if is_dummy else f"GGUF {storage_kind(file).name}",
        source=DummyWeights(spec, seed) if is_dummy else GgufWeights(file, spec),
        tokenizer_facts={key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")},
        generation_defaults=_gguf_defaults(file.metadata, path),
    )


def read_generation_defaults(folder: Path) -> dict[str, float]:
    """Sampling defaults of a folder's generation_config.json; empty when it has none.

    Raises:
        ModelLoadError: the file is not JSON, or a default is not a number.
    """
    fields = _generation_config(folder)
    return {name: _default(fields, name, name) for name in _DEFAULTS if fields.has(name)}


def _gguf_defaults(metadata: dict[str, Any], path: Path) -> dict[str, float]:
    fields = Fields(metadata, str(path))
    keys = {name: f"general.sampling.{key}" for name, key in _GGUF_DEFAULTS.items()}
    return {name: _default(fields, name, key) for name, key in keys.items() if fields.has(key)}


def _default(fields: Fields, name: str, key: str) -> float:
    return fields.integer(key, low=-1) if name == "top_k" else fields.number(key, is_positive=False)


def _generation_config(folder: Path) -> Fields:
    path = folder / "generation_config.json"
    return Fields(read_json_object(path) if path.is_file() else {}, str(path))


def _all_ends(spec: ModelSpec, folder: Path) -> tuple[int, ...]:
    """End tokens of config.json and generation_config.json, each once."""
    return tuple(dict.fromkeys((*spec.eos_token_ids, *_generation_config(folder).integers("eos_token_id"))))
