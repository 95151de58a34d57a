"""Typed reading of what a checkpoint says about itself, with one clear line for each thing that is wrong.

Knows nothing about architectures; used for config.json, generation_config.json, safetensors indexes and GGUF metadata,
because all of them come from strangers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threefold.errors import ModelLoadError

_LARGEST_INTEGER = 2**40
_LARGEST_NUMBER = 1e38  # of float32
_LARGEST_JSON_BYTES = 256 * 1024 * 1024


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ModelLoadError: the file is missing, unreadable, not JSON, or not an object.
    """
    try:
        if path.stat().st_size > _LARGEST_JSON_BYTES:
            raise ModelLoadError(f"{path}: larger than any configuration file ({path.stat().st_size} bytes)")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a {type(value).__name__} where a JSON object was expected")
    return value


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping that is read by name and type. A null value counts as absent."""

    values: Mapping[str, Any]
    """What was read."""
    source: str
    """Where from, for messages."""

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = _LARGEST_INTEGER) -> int:
        """A whole number in [low, high]; required when there is no default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fault(name, f"must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: float | None = None, *, is_positive: bool = True) -> float:
        """A finite number; required when there is no default."""
        value = self._get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= _LARGEST_NUMBER or (is_positive and value <= 0):
            raise self.fault(name, "must be a positive number" if is_positive else "must be a number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.fault(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.fault(name, "must be a string")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Whole numbers >= 0: none, one, or a list of them."""
        value = self.values.get(name)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in listed):
            raise self.fault(name, "must be a token id or a list of them")
        return tuple(listed)

    def strings(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty when it is absent."""
        value = self.values.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise self.fault(name, "must be a list of strings")
        return tuple(value or ())

    def section(self, name: str) -> Fields | None:
        """A nested object; None when it is absent or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fault(name, "must be an object")
        return Fields(value, f"{self.source}: {name}")

    def has(self, name: str) -> bool:
        """True when the field is there and not null."""
        return self.values.get(name) is not None

    def fault(self, name: str, rule: str) -> ModelLoadError:
        """The error that says what was given and what would work."""
        given = f"got {self.values[name]!r:.80}" if self.has(name) else "it is missing"
        return ModelLoadError(f"{self.source}: {name} {rule}; {given}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value
