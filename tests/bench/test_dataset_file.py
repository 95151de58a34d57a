import gzip
from pathlib import Path

import pytest

from threefold.bench.dataset_file import entries, read_file
from threefold.errors import ConfigError


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'{"a": 1}\n\n  \n{"b": 2}', [("x, line 1", {"a": 1}), ("x, line 4", {"b": 2})]),
        (b'{"a": 1}\r\n{"b": 2}\r\n', [("x, line 1", {"a": 1}), ("x, line 2", {"b": 2})]),
        (b' [{"a": 1},\n 5]', [("x, entry 1", {"a": 1}), ("x, entry 2", 5)]),
        (b"[1]\n[2]", [("x, line 1", [1]), ("x, line 2", [2])]),  # lines that are lists, no list of entries
        (b"[]", []),
        (b"", []),
    ],
)
def test_entries(content: bytes, found: list) -> None:
    assert list(entries(content, "x")) == found


def test_a_list_that_breaks_off_names_its_line() -> None:
    with pytest.raises(ConfigError, match="x, line 1: is no JSON"):
        list(entries(b'[{"a": 1},\n{"b"', "x"))


def test_gzip_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "plain.jsonl"
    path.write_bytes(gzip.compress(b"{}"))
    assert read_file(path) == b"{}"
