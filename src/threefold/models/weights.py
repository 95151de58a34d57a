"""Where weights come from when they need no dequantising: safetensors files, or seeded random numbers.

Both hand out one tensor at a time under canonical names; checks are made when a source is opened, from headers alone,
so that a broken checkpoint is refused before any memory is taken. Pickled files are never read.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from threefold.errors import ModelLoadError
from threefold.layers.buffers import fresh_tensor
from threefold.models.dummy_quantised import dummy_quantised
from threefold.models.fields import read_json_object
from threefold.models.shapes import Expected, Shape, check_shapes, expected_tensors
from threefold.models.spec import ModelSpec
from threefold.models.upload import Stage

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_FILE_NAME = re.compile(r"[\w.+ -]+\.safetensors")  # no slash: the index of a stranger stays in its folder
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_QUANTISED = {torch.float8_e4m3fn: "F8_E4M3", torch.int32: "I32", torch.int8: "I8", torch.uint8: "U8"}
_LFS_POINTER = b"version https://git-lfs"
_CPU = torch.device("cpu")
_BIAS_SCALE = 0.02
_BOUND = math.sqrt(3)
"""A uniform number in [-sqrt(3), sqrt(3)] has variance 1."""
_RANDOM_TABLE = 4_194_301  # a prime, so that rows of common widths do not repeat each other


class WeightSource(Protocol):
    """Anything that can hand out a model's weights."""

    def read(self, dtype: torch.dtype, device: torch.device = _CPU) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight once, by canonical name, in the given type; it may be a view of a mapped file.

        `device` is where it will be used. A source that comes there faster than by a copy brings it there.
        """
        ...


class SafetensorsWeights:
    """One safetensors file, or shards with an index, checked against the spec.

    Args:
        folder: holds model.safetensors, or model.safetensors.index.json and the shards that it names.
        spec: what the weights must be.

    Raises:
        ModelLoadError: files missing, truncated or outside the folder; tensors missing, left over or of another shape.
    """

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._file_of = _tensor_files(folder)
        self._expected = expected_tensors(spec)
        shapes: dict[str, Shape] = {}
        for path in dict.fromkeys(self._file_of.values()):
            shapes.update(self._check_file(path))
        check_shapes(spec, shapes, str(folder))

    @property
    def stored_dtype(self) -> str:
        """Type of the embedding in the file: the checkpoint's, where its configuration names none."""
        name = next(iter(self._expected))
        with _opened(self._file_of[name]) as file:
            return _DTYPES[file.get_slice(name).get_dtype()]

    def read(self, dtype: torch.dtype, device: torch.device = _CPU) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight once; on a CPU a view of the mapped file when it is stored in `dtype`."""
        bring = Stage(device).upload if device.type == "cuda" else _in_host_memory
        for name, tensor in self._mapped():
            yield name, bring(tensor, self._expected[name].dtype(dtype))

    def matching(self, name: re.Pattern[str]) -> dict[str, torch.Tensor]:
        """Small tensors beside the weights whose whole names match, as they are stored."""
        found = {}
        for matched in (known for known in self._file_of if name.fullmatch(known)):
            with _opened(self._file_of[matched]) as file:
                found[matched] = file.get_tensor(matched)
        return found

    def _mapped(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight as it is stored, a view of the file."""
        for name in self._expected:
            # Opened anew for each tensor: the mapping goes with its last view, so pages read do not pile up.
            with _opened(self._file_of[name]) as file:
                tensor: torch.Tensor = file.get_tensor(name)
            yield name, tensor

    def _check_file(self, path: Path) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {}
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                if self._file_of.get(name) != path:
                    continue
                part = file.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                if name in self._expected:
                    _check_type(f"{path}: {name}", part.get_dtype(), self._expected[name])
        return shapes


def _check_type(where: str, stored: str, expected: Expected) -> None:
    """A plain tensor and a scale may be of any floating type, quantised numbers of their own alone."""
    kept = expected.dtype(torch.float32)
    known = tuple(_DTYPES) if kept in _FLOATS else (_QUANTISED[kept],)
    if stored not in known:
        is_quantised = "" if expected.form else ", as the configuration leaves it plain"
        raise ModelLoadError(f"{where} is stored as {stored}; known types: {', '.join(known)}{is_quantised}")


def _in_host_memory(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else fresh_tensor(tuple(tensor.shape), dtype).copy_(tensor)


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path}: the shard is missing") from error
    except (SafetensorError, OSError) as error:
        if _is_pointer(path):
            raise ModelLoadError(f"{path}: a Git LFS pointer in place of the file; `git lfs pull` fetches it") from None
        raise ModelLoadError(f"{path}: truncated or not a safetensors file: {error}") from error


def _is_pointer(path: Path) -> bool:
    """Whether a clone without Git LFS left a few lines in place of the weights."""
    try:
        with path.open("rb") as file:
            return file.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return False


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor, by the index or by the only file's own header."""
    index = folder / INDEX_FILE
    if index.is_file():
        return _indexed_files(index)
    single = folder / SINGLE_FILE
    if single.is_file():
        with _opened(single) as file:
            return dict.fromkeys(file.keys(), single)
    is_torch_only = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))
    hint = "; torch's own files (.bin, .pt) can run code and are never read, convert them" if is_torch_only else ""
    raise ModelLoadError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{hint}")


def _indexed_files(index: Path) -> dict[str, Path]:
    table = read_json_object(index).get("weight_map")
    if not isinstance(table, Mapping) or not table:
        raise ModelLoadError(f"{index}: weight_map must be an object of tensor names to file names")
    files: dict[str, Path] = {}
    for name, file in table.items():
        if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
            raise ModelLoadError(f"{index}: {file!r:.80} is not the name of a safetensors file within the folder")
        files[name] = index.parent / file
    return files


class DummyWeights:
    """Seeded random weights: any shape of model without its file, for benchmarks and tests.

    Matrices have variance 1 / fan-in and norms are one, so activations keep their size through any number of layers.
    The same seed, name and shape give the same tensor in any order. On a CPU values come from one table of random
    numbers, begun at a place that the tensor's name gives: gigabytes cost a copy rather than a random number each. A
    card makes its own, other ones.
    """

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        self._spec = spec
        self._seed = seed

    def read(self, dtype: torch.dtype, device: torch.device = _CPU) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight once, made when it is asked for, on a card on the card itself."""
        make = self._from_table(dtype) if device.type == "cpu" else self._by_generator(dtype, device)
        for name, expected in expected_tensors(self._spec).items():
            if expected.is_plain:
                yield name, make(name, expected.shape)
            else:
                generator = torch.Generator(device).manual_seed(_seed_of(self._seed, name))
                yield name, dummy_quantised(expected, dtype, generator)

    def _from_table(self, dtype: torch.dtype) -> Callable[[str, Shape], torch.Tensor]:
        generator = torch.Generator().manual_seed(self._seed)
        table = torch.empty(_RANDOM_TABLE).uniform_(-_BOUND, _BOUND, generator=generator).to(dtype)
        return lambda name, shape: _piece_of_table(name, shape, table)

    def _by_generator(self, dtype: torch.dtype, device: torch.device) -> Callable[[str, Shape], torch.Tensor]:
        generator = torch.Generator(device)

        def make(name: str, shape: Shape) -> torch.Tensor:
            if name.endswith("norm.weight"):
                return torch.ones(shape, dtype=dtype, device=device)
            generator.manual_seed(_seed_of(self._seed, name))
            bound = _BOUND * _scale(name, shape)
            return torch.empty(shape, dtype=dtype, device=device).uniform_(-bound, bound, generator=generator)

        return make


def _seed_of(seed: int, name: str) -> int:
    return zlib.crc32(f"{seed} {name}".encode())


def _piece_of_table(name: str, shape: Shape, table: torch.Tensor) -> torch.Tensor:
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=table.dtype)
    out = fresh_tensor((math.prod(shape),), table.dtype)
    begin = zlib.crc32(name.encode()) % len(table)
    num_done = 0
    while num_done < len(out):
        piece = table[begin : begin + len(out) - num_done]
        out[num_done : num_done + len(piece)] = piece
        num_done += len(piece)
        begin = 0
    return out.mul_(_scale(name, shape)).view(shape)


def _scale(name: str, shape: Shape) -> float:
    scale: float = _BIAS_SCALE if name.endswith(".bias") else shape[1] ** -0.5
    return scale
