"""Text to values: one small parser a kind. Each raises ValueError with the words for "what would work"."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_HUMAN_INT = re.compile(r"^([+-]?)(\d[\d_]*(?:\.\d+)?)([kKmMgGtT]?)$")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def text(value: str) -> str:
    """Any text but the empty one."""
    if not value:
        raise ValueError("wants a text that is not empty")
    return value


def output_file(value: str) -> str:
    """A file to write to when the work is done: what cannot be written is said before it."""
    path = Path(text(value))
    if path.is_dir():
        raise ValueError(f"wants a file, and {value} is a folder")
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK) or (nearest != path and not nearest.is_dir()):
        raise ValueError(f"{value}: cannot be written, as {nearest} is not to be written to")
    return value


def switch(value: str) -> bool:
    """On or off."""
    lowered = value.lower()
    if lowered in ("true", "yes", "on", "1"):
        return True
    if lowered in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"wants true or false, got '{value}'")


def opposite(value: str) -> bool:
    """A switch whose field says the contrary: --disable-x for enable_x."""
    return not switch(value)


def only_on(reason: str) -> Callable[[str], bool]:
    """A switch that cannot be turned off here."""

    def parse(value: str) -> bool:
        if not switch(value):
            raise ValueError(f"cannot be turned off: {reason}")
        return True

    return parse


def human_int(value: str) -> int:
    """An integer, with suffixes: 32k = 32,000; 32K = 32,768; 1.5k = 1,500; also m M g G t T."""
    match = _HUMAN_INT.match(value.strip())
    if match is None:
        raise ValueError(f"wants a whole number such as 4096, 32k (= 32,000) or 32K (= 32,768), got '{value}'")
    sign, digits, suffix = match.groups()
    scaled = float(digits.replace("_", "")) * {**_DECIMAL, **_BINARY}[suffix]
    if scaled != int(scaled):
        raise ValueError(f"wants a whole number, and '{value}' is {scaled:g}")
    return -int(scaled) if sign == "-" else int(scaled)


def integer(low: int | None = None, high: int | None = None) -> Callable[[str], int]:
    """A whole number, both bounds included."""

    def parse(value: str) -> int:
        number_ = human_int(value)
        if (low is not None and number_ < low) or (high is not None and number_ > high):
            span = f"between {low} and {high}" if high is not None else f"of at least {low}"
            raise ValueError(f"wants a whole number {span}, got {number_}")
        return number_

    return parse


def seed(value: str) -> int:
    """What a source of chance begins with; no kind of source takes a negative one, or one of more than 64 bits."""
    return integer(0, 2**63 - 1)(value)


def number(low: float, high: float = float("inf"), *, is_low_open: bool = False) -> Callable[[str], float]:
    """A number within [low, high], or (low, high]."""
    span = f"of at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
    span = f"above {low:g}" + ("" if high == float("inf") else f" and at most {high:g}") if is_low_open else span

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            raise ValueError(f"wants a number {span}, got '{value}'") from None
        if not low <= parsed <= high or (is_low_open and parsed == low):
            raise ValueError(f"wants a number {span}, got {value}")
        return parsed

    return parse


def choice(*options: str, **synonyms: str) -> Callable[[str], str]:
    """One of a few words; `synonyms` map other spellings to them."""

    def parse(value: str) -> str:
        chosen = synonyms.get(value, value)
        if chosen not in options:
            raise ValueError(f"wants one of {', '.join(options)}; got '{value}'")
        return chosen

    return parse


def built_choice(*options: str, known: str = "", **synonyms: str) -> Callable[[str], str]:
    """As `choice`, telling values that other engines have and this one has not built from nonsense."""

    def parse(value: str) -> str:
        if value not in options and value in known.split():
            raise ValueError(
                f"'{value}' is known to vLLM, not built in Threefold yet; what works: {', '.join(options)}"
            )
        return choice(*options, **synonyms)(value)

    return parse


def none_or(parse: Callable[[str], T], *words: str) -> Callable[[str], T | None]:
    """None for any of `words` (auto, none, -1 …), else what `parse` makes of it."""
    return lambda value: None if value.lower() in words else parse(value)


def one(value: str) -> tuple[str, ...]:
    """One word of a list."""
    return (text(value),)


def words(value: str) -> tuple[str, ...]:
    """One or more words of a list: `a`, `a,b` or the JSON list `["a", "b"]`."""
    if not value.startswith("["):
        return tuple(part for part in value.split(",") if part)
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value[1:].removesuffix("]").split(",")  # the shell ate the quotes
    return tuple(text(str(part).strip()) for part in parsed)


def keys(value: str) -> tuple[str, ...]:
    """An API key, or @FILE with one key a line (blank lines and lines beginning with # are skipped)."""
    if not value.startswith("@"):
        return (text(value),)
    try:
        lines = Path(value[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the key file {value[1:]}: {error}") from None
    found = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not found:
        raise ValueError(f"the key file {value[1:]} holds no key")
    return found
