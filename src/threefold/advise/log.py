"""Reads request logs: JSON lines, or one JSON list, in any of the forms that forms.py knows; gzipped or not.

A line that is broken is named, counted and passed over. Knows nothing about tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from threefold.advise.forms import BatchHalf, read_entry
from threefold.advise.logged import Fault, Log, LoggedRequest
from threefold.bench.dataset_file import decode_json, read_file
from threefold.errors import ConfigError


def read_logs(paths: Sequence[Path]) -> Log:
    """Read log files as one log.

    Raises:
        ConfigError: a file cannot be read, or no line of any of them is a request.
    """
    log = Log([], {}, [])
    forms: Counter[str] = Counter()
    halves: dict[str, BatchHalf] = {}
    for path in paths:
        for number, content in _entries(read_file(path, "log")):
            try:
                form, found = read_entry(_parsed(content))
            except ValueError as error:
                log.faults.append(Fault(number, str(error)))
                continue
            forms[form] += 1
            if isinstance(found, BatchHalf):
                _join(halves, found)
            else:
                log.requests += found
    log.requests += [half.joined() for half in halves.values()]
    log.forms = dict(forms)
    if not log.requests:
        raise ConfigError(_nothing(paths, log.faults))
    if log.has_times:
        log.requests.sort(key=lambda request: request.arrival_s or 0.0)
    return log


def _nothing(paths: Sequence[Path], faults: Sequence[Fault]) -> str:
    names = ", ".join(str(path) for path in paths)
    if not faults:
        return f"{names}: holds no request; one JSON object a line is wanted, with request and response"
    return f"{names}: none of {len(faults)} lines is a request; line {faults[0].line}: {faults[0].reason}"


def _entries(content: bytes) -> Iterator[tuple[int, Any]]:
    """(number, line or object); a file that is one JSON list gives its items."""
    if content.lstrip()[:1] == b"[":
        try:
            items = json.loads(content)
        except (ValueError, RecursionError):
            items = None
        if isinstance(items, list) and all(isinstance(item, dict) for item in items):
            yield from enumerate(items, start=1)
            return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parsed(content: Any) -> dict[str, Any]:
    if isinstance(content, bytes):
        content = decode_json(content)
    if not isinstance(content, dict):
        raise ValueError(f"wants an object, got a {type(content).__name__}")
    return content


def _join(halves: dict[str, BatchHalf], found: BatchHalf) -> None:
    known = halves.get(found.custom_id)
    if known is None:
        halves[found.custom_id] = found
    else:
        known.request = known.request or found.request
        known.response = known.response or found.response


__all__ = ["LoggedRequest", "read_logs"]
