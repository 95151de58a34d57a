"""What quantisation costs in answers: figures that `threefold quality` measured, by the lever that they belong to.

A lever's gain is simulated; what it does to answers cannot be, so it is either measured or said to be unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from threefold.errors import ConfigError

COMMANDS = {
    "fp8 weights": "threefold quality MODEL --quantization-b fp8 --data FILE --json Q.json",
    "awq weights": "threefold quantize MODEL --scheme awq --calibration FILE -o DIR",
    "fp8 kv cache": "threefold quality MODEL --kv-cache-dtype-b fp8 --data FILE --json Q.json",
}
"""What to type to know."""
_WEIGHT_LEVERS = {"fp8": "fp8 weights"}
_FOUR_BITS = "awq weights"


def read_quality(paths: Sequence[str]) -> dict[str, str]:
    """What was measured, in words, by lever.

    Raises:
        ConfigError: a file cannot be read, is no result of `threefold quality`, or compares other things than a lever.
    """
    found: dict[str, str] = {}
    for path in paths:
        result = _read(Path(path))
        try:
            found[_lever(result["model_a"], result["model_b"])] = str(result["verdict"])
        except (KeyError, TypeError):
            raise ConfigError(f"--quality {path}: lacks what `threefold quality --json` writes") from None
        except ValueError as error:
            raise ConfigError(f"--quality {path}: {error}") from None
    return found


def quality_words(lever: str, measured: Mapping[str, str]) -> str:
    """What is said of a lever's quality; "" for one that leaves answers as they are."""
    if lever in measured:
        return f"quality: {measured[lever]}"
    command = COMMANDS.get(lever)
    return "" if command is None else f"quality is not measured: {command}, then --quality"


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--quality {path}: cannot read it: {error}") from None
    if not isinstance(result, dict) or result.get("kind") != "quality":
        raise ConfigError(f"--quality {path}: is no result of `threefold quality --json`")
    return result


def _lever(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """The one thing in which B differs."""
    levers = []
    if b["quantization"] is not None and a["quantization"] is None:
        levers.append(_WEIGHT_LEVERS.get(b["quantization"], _FOUR_BITS))
    if b["kv_cache_dtype"] != "auto" and a["kv_cache_dtype"] == "auto":
        levers.append("fp8 kv cache")
    if len(levers) != 1:
        what = "two levers at once" if levers else "neither quantised weights nor an FP8 KV cache with the plain model"
        raise ValueError(f"compares {what}; one lever a file: A plain, B with {', '.join(COMMANDS)}")
    return levers[0]
