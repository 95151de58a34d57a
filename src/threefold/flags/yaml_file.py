"""`--config FILE.yaml`: the flags of a command, by name, in a file. Knows no particular flag.

model: Qwen/Qwen3-8B
max-num-seqs: 256
enable-prefix-caching: true
speculative-config:
  method: ngram
  num_speculative_tokens: 5
"""

from __future__ import annotations

from pathlib import Path

import yaml

from threefold.errors import ConfigError
from threefold.flags.flag import Flag, Parsed
from threefold.flags.grammar import FlagSet, assign, convert, convert_list, refuse
from threefold.flags.values import switch


def read_config_file(path: Path, flags: FlagSet, parsed: Parsed) -> None:
    """Add the file's assignments to `parsed`.

    Raises:
        ConfigError: one line with the file's name: not there, no YAML, a key or a value that cannot hold.
    """
    for key, value in _load(path).items():
        if value is None:
            continue
        spelling = "--" + str(key).replace("_", "-").lstrip("-")
        _read_key(spelling, value, path.name, flags, parsed)


def _load(path: Path) -> dict[object, object]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path}: is no UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(f"--config {path}: is no valid YAML: {error.problem}{line}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path}: is no valid YAML: {str(error).splitlines()[0]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: wants lines such as `max-num-seqs: 256`, got a {type(content).__name__}")
    return content


def _read_key(spelling: str, value: object, file: str, flags: FlagSet, parsed: Parsed) -> None:
    where = f"{file}: "
    flag = flags.find(spelling)
    if flag is not None and flag.field != "config":
        assign(flag, _value(flag, value, where), file, parsed)
        return
    if flag is not None:
        raise ConfigError(f"{where}a file cannot name another one with config; write its lines here")
    negated = flags.find_negated(spelling)
    if negated is not None:
        assign(negated, convert(negated, str(not _switch(spelling, value, where)), where), file, parsed)
        return
    found = flags.refusal(spelling)
    if found is None:
        raise flags.unknown(spelling, where)
    refuse(spelling, found, _text(value), where)


def _value(flag: Flag, value: object, where: str) -> object:
    if flag.kind == "json":
        return value if isinstance(value, dict) else convert(flag, str(value), where)
    if flag.kind == "list":
        items = [f"{key}:{item}" for key, item in value.items()] if isinstance(value, dict) else value
        return convert_list(flag, [_text(item) for item in (items if isinstance(items, list) else [items])], where)
    if isinstance(value, dict | list):
        raise ConfigError(f"{where}--{flag.name} takes one value: {flag.help}")
    return convert(flag, _text(value), where)


def _switch(spelling: str, value: object, where: str) -> bool:
    try:
        return switch(_text(value))
    except ValueError as error:
        raise ConfigError(f"{where}{spelling} {error}") from None


def _text(value: object) -> str:
    """A scalar as it would be typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)
