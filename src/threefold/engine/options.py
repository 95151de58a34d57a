"""Keyword options of `LLM(…)` to configs: each option is a field of one of them, by its name.

A value is read as the flag of that field reads it, so both doors take the same and refuse the same. Knows no option by
name but `speculative_config`, which is a block of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import Field, fields, replace
from typing import Any

from threefold.config import EngineConfig
from threefold.errors import ConfigError
from threefold.flags.grammar import convert_list
from threefold.flags.speculation import parse_speculation
from threefold.flags.table import ENGINE_FLAGS

SECTIONS = ("model", "cache", "scheduler", "parallel", "device")
_FLAGS = {flag.field: flag for flag in ENGINE_FLAGS}


def config_from_options(model: str | None, options: dict[str, Any]) -> EngineConfig:
    """The config that the options ask for.

    Raises:
        ConfigError: an option that is no field, with the nearest one that is, or a value that cannot hold.
    """
    config = EngineConfig()
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    owner = {field.name: (name, field) for name in SECTIONS for field in fields(getattr(config, name))}
    rest = {"model": model, **options}
    block = rest.pop("speculative_config", None)
    for name, value in rest.items():
        if name not in owner:
            near = difflib.get_close_matches(name, owner, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ConfigError(f"LLM has no option '{name}'; {hint}known: {', '.join(sorted(owner))}")
        section, field = owner[name]
        sections[section][name] = _checked(section, field, value)
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    if block is not None and not isinstance(block, Mapping):
        raise ConfigError(f"speculative_config wants a dict such as {{'method': 'ngram'}}, got {block!r:.100}")
    speculation = config.speculation if block is None else parse_speculation(block)
    return replace(config, speculation=speculation, **changed)


def _checked(section: str, field: Field[Any], value: object) -> object:
    """The value as its flag would have it."""
    if value is None and field.default is None:
        return None
    flag = _FLAGS[f"{section}.{field.name}"]
    try:
        if flag.kind == "list":
            return convert_list(flag, [value] if isinstance(value, str) else [str(one) for one in value])  # type: ignore[attr-defined]
        return flag.parse(str(value))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"option {field.name} {error}") from None
