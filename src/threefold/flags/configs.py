"""Assignments to configs: each flag's value goes to the field that its row names. Knows no flag by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from threefold.config import EngineConfig, ServerConfig, api_keys_from_environment
from threefold.errors import ConfigError
from threefold.flags.flag import Assignment, Flag, Parsed
from threefold.flags.grammar import FlagSet, parse_words
from threefold.flags.speculation import parse_speculation
from threefold.flags.table import CONFIG_FLAG

Config = TypeVar("Config")


def parse_command(words: Sequence[str], flags: Sequence[Flag], *, refuses_vllm: bool = True) -> Parsed:
    """Read a command line and the YAML file it may name.

    Raises:
        ConfigError: one line, saying what was given and what would work.
    """
    known = FlagSet((*flags, CONFIG_FLAG), refuses_vllm=refuses_vllm)
    typed = parse_words(words, known)
    files = [str(assignment.value) for assignment in typed.assignments if assignment.flag.field == "config"]
    if len(files) > 1:
        raise ConfigError(f"--config is given {len(files)} times; one file holds the flags")
    if not files:
        return typed
    from threefold.flags.yaml_file import read_config_file

    parsed = Parsed(positionals=typed.positionals, help_word=typed.help_word)
    read_config_file(Path(files[0]), known, parsed)
    parsed.assignments += typed.assignments  # later wins: the command line after the file
    parsed.warnings += [line for line in typed.warnings if line not in parsed.warnings]
    return parsed


def fill(section: str, config: Config, assignments: Sequence[Assignment]) -> Config:
    """A copy of `config` with the values given to "section.field"."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for flag, value, origin in assignments:
        where, _, field = flag.field.partition(".")
        if where != section:
            continue
        if flag.kind == "list" and origins.get(field) == origin:
            values[field] += value  # --api-key a --api-key b: both, unless they come from different places
        else:
            values[field] = value
        origins[field] = origin
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def speculation_block(assignments: Sequence[Assignment]) -> dict[str, object]:
    """The speculative-config block put together from its JSON and its single flags.

    A whole object on the command line takes the place of the file's; single keys change what is there.
    """
    block: dict[str, object] = {}
    previous = ""
    for flag, value, origin in assignments:
        section, _, key = flag.field.partition(".")
        if section != "speculation":
            continue
        if flag.kind == "json":
            assert isinstance(value, dict)
            block = {**(block if origin == previous else {}), **value}
        else:
            block[key] = value
        previous = origin
    return block


def engine_config(parsed: Parsed, model: str | None = None) -> EngineConfig:
    """Build the engine's config; `model` is the positional MODEL, if any.

    Raises:
        ConfigError: speculation keys that cannot hold, or two different models.
    """
    default = EngineConfig()
    model_config = fill("model", default.model, parsed.assignments)
    if model is not None:
        if model_config.model not in (None, model):
            raise ConfigError(f"two models are given: {model} and --model {model_config.model}; give one")
        model_config = dataclasses.replace(model_config, model=model)
    return EngineConfig(
        model=model_config,
        cache=fill("cache", default.cache, parsed.assignments),
        scheduler=fill("scheduler", default.scheduler, parsed.assignments),
        speculation=parse_speculation(speculation_block(parsed.assignments)),
        slo=fill("slo", default.slo, parsed.assignments),
        parallel=fill("parallel", default.parallel, parsed.assignments),
        device=fill("device", default.device, parsed.assignments),
    )


def server_config(parsed: Parsed) -> ServerConfig:
    """Build the server's config; keys come from the environment when no flag gives any.

    Raises:
        ConfigError: one of the two TLS files is missing.
    """
    config = fill("server", ServerConfig(), parsed.assignments)
    if (config.ssl_keyfile is None) != (config.ssl_certfile is None):
        raise ConfigError("--ssl-keyfile and --ssl-certfile belong together; one is missing")
    return config if config.api_keys else dataclasses.replace(config, api_keys=api_keys_from_environment())
