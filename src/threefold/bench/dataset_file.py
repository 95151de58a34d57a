"""A data set's file to its entries: JSON lines or one JSON list, plain or gzipped. Knows no entry's meaning."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from threefold.errors import ConfigError

_GZIP = b"\x1f\x8b"


def read_file(path: Path, flag: str = "--dataset") -> bytes:
    """The bytes of the file that `flag` names, unpacked when they are gzipped.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ConfigError(f"{flag} {path}: is gzipped and damaged") from None
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot read it: {error.strerror}") from None


def entries(content: bytes, name: str) -> Iterator[tuple[str, object]]:
    """Each entry, with the words for where it stands; blank lines are skipped.

    Raises:
        ConfigError: a line is no JSON; the message names it.
    """
    if content.lstrip()[:1] == b"[" and (whole := _list_of(content)) is not None:
        for number, entry in enumerate(whole, start=1):
            yield f"{name}, entry {number}", entry
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            where = f"{name}, line {number}"
            yield where, _decode(line, where)


def _list_of(content: bytes) -> list[object] | None:
    """The whole file as one JSON list; None when it is none, and so is read by lines."""
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return whole if isinstance(whole, list) else None


def _decode(line: bytes, where: str) -> object:
    try:
        return decode_json(line)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def decode_json(line: bytes) -> object:
    """A line's value.

    Raises:
        ValueError: it has none; the message says why, without saying where.
    """
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("is no UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
