"""Heads of GGUF files: what a writer wrote is read; what a damaged file claims is never believed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from threefold.errors import ModelLoadError
from threefold.models.gguf_file import read_gguf


def test_agrees_with_the_librarys_reader(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf(**{"x.words": ["a", "é", ""], "x.numbers": [1, -2, 3], "x.floats": [0.5, 1.5], "x.flag": True})
    ours, theirs = read_gguf(path), GGUFReader(path)
    pairs = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == pairs
    assert ours.metadata["x.words"] == ["a", "é", ""]
    assert ours.metadata["x.flag"] is True
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert (found.offset_bytes, found.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert found.kind == tensor.tensor_type


def head(num_tensors: int, num_pairs: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(b"t") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF", "too short"),
        (b"NOPE" + bytes(40), "not a GGUF file"),
        (head(0, 0, version=1), "version 1 is not read; known: 2, 3"),
        (head(0, 0, version=3 << 24), "a big-endian file"),
        (head(2**60, 0), "claims 1152921504606846976 tensors"),
        (head(0, 2**60), "claims 1152921504606846976 key-value pairs"),
        (head(0, 1, struct.pack("<Q", 2**63) + bytes(16)), "inside its head"),
        (head(0, 1, pair(b"a", 99, bytes(8))), "unknown value type 99"),
        (head(0, 1, pair(b"a", 9, struct.pack("<IQ", 4, 2**40))), "array items, more than the file could hold"),
        (head(0, 1, pair(b"a", 9, struct.pack("<IQ", 8, 2**40))), "strings, more than the file could hold"),
        (head(0, 1, pair(b"a", 9, struct.pack("<IQ", 9, 1) + bytes(20))), "arrays of arrays"),
        (head(0, 1, pair(b"\xff\xff", 0, b"\0")), "not UTF-8"),
        (head(0, 2, pair(b"a", 0, b"\0") * 2), "'a' appears twice"),
        (head(0, 1, pair(b"general.alignment", 4, struct.pack("<I", 48))), "must be a power of two, got 48"),
        (head(0, 1, pair(b"general.alignment", 8, text(b"32"))), "must be a power of two, got '32'"),
        (head(1, 0, tensor(())), "has 0 dimensions"),
        (head(1, 0, tensor((1, 1, 1, 1, 1))), "has 5 dimensions"),
        (head(1, 0, tensor((2**40, 2**40))), "reaches beyond the end"),
        (head(1, 0, tensor((1,), offset=2**60)), "reaches beyond the end"),
        (head(1, 0, tensor((1,), kind=77)), "is of unknown type 77"),
        (head(1, 0, tensor((33,), kind=Kind.Q8_0)), "rows of 33 are no whole Q8_0 blocks"),
        (head(2, 0, tensor((1,)) * 2 + bytes(64)), "tensor 't' appears twice"),
    ],
)
def test_claims_are_checked_before_they_are_believed(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        read_gguf(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no\.gguf: cannot be read"):
        read_gguf(tmp_path / "no.gguf")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_heads_end_in_one_line(data: st.DataObject, tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf({"odd": (np.ones((2, 32)), Kind.Q8_0)}, **{"x.words": ["a", "bc"], "x.numbers": [1, 2]})
    content = bytearray(path.read_bytes())
    data_begin = min(item.offset_bytes for item in read_gguf(path).tensors.values())
    for at in data.draw(st.lists(st.integers(0, data_begin - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.sampled_from([0, 1, 2, 8, 9, 127, 128, 255]))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    path.write_bytes(content)
    try:
        file = read_gguf(path)
    except ModelLoadError as error:
        assert "\n" not in str(error)
    else:
        ends = [item.offset_bytes + item.num_bytes for item in file.tensors.values()]
        assert max(ends, default=0) <= len(content)
