"""Latency targets as they are typed: `ttft:500,tpot:50`, milliseconds. The one parser of `--slo` and `--goodput`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from threefold.errors import ConfigError

Targets = tuple[tuple[str, float], ...]
"""(name, milliseconds) pairs; of one name's, the last holds."""

SERVED: Mapping[str, str] = {"ttft": "ttft", "tpot": "tpot"}
"""What an engine can hold to."""


def targets_of(names: Mapping[str, str]) -> Callable[[str], Targets]:
    """A parser of one word, such as `ttft:500` or `ttft:500,tpot:50`.

    Args:
        names: as typed, to what the target is called.
    """

    def parse(word: str) -> Targets:
        found = tuple(_one(term.strip(), names) for term in word.split(",") if term.strip())
        return found or (_one(word, names),)  # nothing is no target either

    return parse


def parse_targets(terms: Sequence[str], names: Mapping[str, str], flag: str) -> dict[str, float]:
    """The targets of several words, by name, milliseconds.

    Raises:
        ConfigError: an unknown name, or no number above 0; `flag` is what it was given to, with its dashes.
    """
    parse = targets_of(names)
    try:
        return dict(pair for word in terms for pair in parse(word))
    except ValueError as error:
        raise ConfigError(f"{flag} {error}") from None


def _one(term: str, names: Mapping[str, str]) -> tuple[str, float]:
    name, _, value = term.partition(":")
    try:
        limit_ms = float(value)
    except ValueError:
        limit_ms = 0.0
    if name.strip() not in names or not 0 < limit_ms < 1e9:
        *others, last = [f"{known}:MS" for known in dict.fromkeys(names.values())]
        raise ValueError(f"{term.strip() or repr(term)}: wants {', '.join(others)} or {last}, milliseconds above 0")
    return names[name.strip()], limit_ms
