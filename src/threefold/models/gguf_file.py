"""The head of a GGUF file: key-value pairs and where each tensor lies. (Format: ggml's docs/gguf.md, versions 2 and 3.)

Every count, length and offset is checked against the file's size before it is believed, so a damaged file ends in one
line, never in a crash or a huge allocation. That check has to walk the whole head, so it reads it as well: in a tenth
of the time of the library's reader, which keeps an array for each part. Knows nothing about models; needs no torch.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from threefold.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_SMALLEST_PAIR_BYTES = 8 + 4 + 1  # key length, value type, one byte of value
_SMALLEST_TENSOR_BYTES = 8 + 4 + 4 + 8  # name length, number of dimensions, type, offset
_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
    GGUFValueType.BOOL: "<?",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies and how it is stored."""

    shape: tuple[int, ...]
    """Rows first, as in torch (the file has it the other way round)."""
    kind: GGMLQuantizationType
    """How its values are packed."""
    offset_bytes: int
    """From the start of the file."""
    num_bytes: int
    """Length in the file."""


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The head of one file."""

    path: Path
    """The file."""
    metadata: dict[str, Any]
    """Key-value pairs as numbers, strings, booleans and lists of these."""
    tensors: dict[str, GgufTensor]
    """By the name that the file gives."""


def read_gguf(path: Path) -> GgufFile:
    """Read and check the head of a GGUF file.

    Raises:
        ModelLoadError: the file cannot be read, is no GGUF file, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise ModelLoadError(f"{path}: too short to be a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _Head(path, mapped).read()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Head:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._mapped = mapped
        self._size = len(mapped)
        self._at = 0

    def read(self) -> GgufFile:
        if self._take(4) != _MAGIC:
            raise self._fault("not a GGUF file (its first four bytes differ)")
        version = self._number("<I")
        if version not in _VERSIONS:
            swapped = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
            raise self._fault(f"GGUF version {version} is not read{swapped}; known: 2, 3")
        num_tensors = self._count(_SMALLEST_TENSOR_BYTES, "tensors")
        num_pairs = self._count(_SMALLEST_PAIR_BYTES, "key-value pairs")
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string()
            if key in metadata:
                raise self._fault(f"key {key!r:.80} appears twice")
            metadata[key] = self._value()
        infos = [self._tensor_info() for _ in range(num_tensors)]
        return GgufFile(self._path, metadata, self._place(infos, self._alignment(metadata)))

    def _fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path}: {what}")

    def _take(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > self._size:
            raise self._fault(f"ends at byte {self._size}, inside its head (truncated?)")
        begin, self._at = self._at, end
        return self._mapped[begin:end]

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _count(self, smallest_bytes: int, what: str) -> int:
        """A count of things that each take at least so many bytes of what is left of the file."""
        count: int = self._number("<Q")
        if count * smallest_bytes > self._size - self._at:
            raise self._fault(f"claims {count} {what}, more than the file could hold (truncated or damaged)")
        return count

    def _string(self) -> str:
        try:
            return self._take(self._number("<Q")).decode()
        except UnicodeDecodeError as error:
            raise self._fault(f"a string before byte {self._at} is not UTF-8 (damaged?)") from error

    def _value_type(self) -> GGUFValueType:
        number = self._number("<I")
        try:
            return GGUFValueType(number)
        except ValueError as error:
            raise self._fault(f"unknown value type {number} before byte {self._at} (damaged?)") from error

    def _value(self) -> Any:
        kind = self._value_type()
        if kind is GGUFValueType.STRING:
            return self._string()
        if kind is GGUFValueType.ARRAY:
            return self._array()
        return self._number(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = self._value_type()
        if kind is GGUFValueType.STRING:
            return [self._string() for _ in range(self._count(8, "strings"))]
        if kind is GGUFValueType.ARRAY:
            raise self._fault("arrays of arrays are not read")
        dtype = np.dtype(_SCALARS[kind])
        count = self._count(dtype.itemsize, "array items")
        items: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return items

    def _tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        num_dims = self._number("<I")
        if not 1 <= num_dims <= _MAX_DIMENSIONS:
            raise self._fault(f"tensor {name!r:.80} has {num_dims} dimensions (damaged?)")
        shape = tuple(reversed([self._number("<Q") for _ in range(num_dims)]))
        number = self._number("<I")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError as error:
            raise self._fault(f"tensor {name!r:.80} is of unknown type {number}") from error
        return name, shape, kind, self._number("<Q")

    def _alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1):
            raise self._fault(f"general.alignment must be a power of two, got {value!r:.80}")
        return value

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]], alignment: int
    ) -> dict[str, GgufTensor]:
        """Turn offsets within the data part into checked offsets within the file."""
        data_begin = -(-self._at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in infos:
            if name in tensors:
                raise self._fault(f"tensor {name!r:.80} appears twice")
            block_values, block_bytes = GGML_QUANT_SIZES[kind]
            if shape[-1] % block_values:
                raise self._fault(f"tensor {name!r:.80}: rows of {shape[-1]} are no whole {kind.name} blocks")
            num_bytes = math.prod(shape) // block_values * block_bytes
            if data_begin + offset + num_bytes > self._size:
                raise self._fault(f"tensor {name!r:.80} reaches beyond the end of the file (truncated?)")
            tensors[name] = GgufTensor(shape, kind, data_begin + offset, num_bytes)
        return tensors
