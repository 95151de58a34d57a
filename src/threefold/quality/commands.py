"""`threefold quality`: from words to a table, a JSON file and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from threefold.bench.machine import provenance
from threefold.bench.report import say, write_json
from threefold.config import EngineConfig
from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, fill, parse_command
from threefold.flags.flag import Parsed
from threefold.flags.usage import usage
from threefold.quality.options import BOTH_FLAGS, QUALITY_FLAGS, QUALITY_GROUPS, SIDE_FLAGS, QualityOptions
from threefold.quality.words import quality_lines


def run_quality(words: Sequence[str]) -> int:
    """`threefold quality MODEL_A MODEL_B --data FILE`: how alike two models are on a text.

    Raises:
        OperatorError: what was typed cannot hold, the text cannot be read, or a model cannot be loaded.
    """
    parsed = parse_command(words, QUALITY_FLAGS + SIDE_FLAGS + BOTH_FLAGS)
    if parsed.help_word is not None:
        print(usage("threefold quality", "[MODEL_A [MODEL_B]] --data FILE [flags]", QUALITY_GROUPS, parsed.help_word))
        return 0
    asked = fill("quality", QualityOptions(), parsed.assignments)
    if asked.data is None:
        raise ConfigError(
            'quality needs a text: --data FILE, plain or JSON lines such as {"prompt": "…", "output": "…"}'
        )
    a, b = side_configs(parsed)
    where = provenance(["quality", *words])
    from threefold.quality.compare import compare_models

    result = compare_models(a, b, Path(asked.data), asked, say=say)
    print("\n".join(quality_lines(result)))
    if asked.json is not None:
        write_json(Path(asked.json), {**where, **result})
    return 0


def side_configs(parsed: Parsed) -> tuple[EngineConfig, EngineConfig]:
    """The two engines that are compared; one MODEL stands for both.

    Raises:
        ConfigError: more than two models, or nothing in which the two differ.
    """
    models = parsed.positionals
    if len(models) > 2:
        raise ConfigError(f"two models are compared, got {len(models)}: {' '.join(models)}")
    config = engine_config(parsed)
    a, b = (_of_side(config, parsed, side, models[at : at + 1]) for side, at in (("a", 0), ("b", len(models) - 1)))
    if a == b and len(models) < 2:
        raise ConfigError(
            "A and B are the same; name a second model, or what differs: --quantization-b fp8, --kv-cache-dtype-b fp8, "
            "--dtype-b float32 …"
        )
    return a, b


def _of_side(config: EngineConfig, parsed: Parsed, side: str, named: Sequence[str]) -> EngineConfig:
    model = fill(f"model_{side}", config.model, parsed.assignments)
    if named:
        model = replace(model, model=named[0])
    return replace(config, model=model, cache=fill(f"cache_{side}", config.cache, parsed.assignments))
