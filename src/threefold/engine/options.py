"""Keyword options of `LLM(…)` to configs: each option is a field of one of them, by its name.

Knows no option by name but `speculative_config`, which is a block of its own.
"""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from typing import Any

from threefold.config import EngineConfig
from threefold.errors import ConfigError
from threefold.flags.speculation import parse_speculation

SECTIONS = ("model", "cache", "scheduler", "parallel", "device")


def config_from_options(model: str | None, options: dict[str, Any]) -> EngineConfig:
    """The config that the options ask for.

    Raises:
        ConfigError: an option that is no field, with the nearest one that is.
    """
    config = EngineConfig()
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    sections["model"]["model"] = model
    owner = {field.name: name for name in SECTIONS for field in fields(getattr(config, name))}
    rest = dict(options)
    block = rest.pop("speculative_config", None)
    for name, value in rest.items():
        if name not in owner:
            near = difflib.get_close_matches(name, owner, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ConfigError(f"LLM has no option '{name}'; {hint}known: {', '.join(sorted(owner))}")
        sections[owner[name]][name] = value
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    speculation = config.speculation if block is None else parse_speculation(block)
    return replace(config, speculation=speculation, **changed)
