"""Result files to the parts of a page. What a file is, is told from what it holds, never from its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from threefold.bench.sweep import SWEEP
from threefold.errors import ConfigError
from threefold.report.origin import Origin, origin_of

KNOWN = "bench serve, offline, envelope, step-load, steps and compare, profile, advise, tune and ladder"


class Part(NamedTuple):
    """One thing that was measured."""

    kind: str
    data: Mapping[str, Any]
    origin: Origin


def _run(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "serve", data


def _sweep(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for run in data["runs"]:
        yield "serve", run


def _advice(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "advice", data["advice"]
    if "tuned" in data:
        yield "tuned", data["tuned"]
        yield "verification", {"cells": data["tuned"]["cells"]}
    if "verification" in data:
        yield "verification", {"cells": data["verification"]}
    yield "portrait", data["portrait"]


def _whole(kind: str) -> Callable[[Mapping[str, Any]], Iterator[tuple[str, Mapping[str, Any]]]]:
    def split(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield kind, data

    return split


class _Form(NamedTuple):
    """A file's form: keys that only it has, and the parts in it."""

    keys: frozenset[str]
    split: Callable[[Mapping[str, Any]], Iterator[tuple[str, Mapping[str, Any]]]]
    benchmark: str = ""
    """What the key of this name says; "" = nothing is asked of it."""


_FORMS = (
    _Form(frozenset({"runs"}), _sweep, SWEEP),
    _Form(frozenset({"cells", "variants"}), _whole("envelope"), "envelope"),
    _Form(frozenset({"changes", "steps"}), _whole("step-load"), "step-load"),
    _Form(frozenset({"rows", "steps", "parts_ms"}), _whole("steps"), "steps"),
    _Form(frozenset({"sides", "figures", "num_rounds"}), _whole("comparison")),
    _Form(frozenset({"advice", "portrait"}), _advice),
    _Form(frozenset({"ladders", "conclusions"}), _whole("ladder")),
    _Form(frozenset({"predictability", "prefix", "prompt_tokens", "output_tokens"}), _whole("portrait")),
    _Form(frozenset({"completed", "output_throughput", "endpoint_type", "max_concurrency"}), _run),
)


def parts_of(data: Mapping[str, Any], file: str) -> list[Part]:
    """The parts of one result.

    Raises:
        ConfigError: it is no result that this page can show.
    """
    form = next((form for form in _FORMS if _has_form(data, form)), None)
    if form is None:
        raise ConfigError(f"{file}: is no result that a report can show; known are the JSON files of {KNOWN}")
    origin = origin_of(data, file)
    try:
        return [Part(kind, part, origin) for kind, part in form.split(data)]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file}: is damaged: {error}") from None


def _has_form(data: Mapping[str, Any], form: _Form) -> bool:
    return form.keys <= data.keys() and (not form.benchmark or data.get("benchmark") == form.benchmark)


def read_parts(paths: Sequence[Path]) -> list[Part]:
    """The parts of all files.

    Raises:
        ConfigError: one cannot be read, or is no result.
    """
    return [part for path in paths for part in parts_of(_read(path), str(path))]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no UTF-8 text; a report is made from the JSON files of {KNOWN}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: is no JSON ({error.msg} at line {error.lineno})") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply to be a result") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: wants a JSON object, got a {type(data).__name__}; known are those of {KNOWN}")
    return data
