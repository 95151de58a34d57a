"""What a flag is, and what came of reading it. Knows no particular flag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["value", "switch", "list", "json"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of one command."""

    name: str
    """Long name without the leading dashes, words joined by dashes."""
    field: str
    """Where its value goes, "section.field"; "" = nowhere, see `no_effect`."""
    parse: Callable[[str], object]
    """Text to value; raises ValueError saying what would work. A switch is read from "true" or "false"."""
    help: str
    """One line."""
    kind: Kind = "value"
    """value takes one word, switch none, list one or more, json one object (or its `.key` form)."""
    aliases: tuple[str, ...] = ()
    """Other spellings, with their dashes."""
    metavar: str = ""
    """What `--help` shows for the value."""
    no_effect: str = ""
    """Why it changes nothing here; the user is told once, unless what it asks for is how things are anyway."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """Everything that names this flag, with dashes."""
        return (f"--{self.name}", *self.aliases)


class Assignment(NamedTuple):
    """One flag given one value."""

    flag: Flag
    value: object
    origin: str
    """"command line", or the YAML file's name."""


@dataclass(slots=True)
class Parsed:
    """A command line, read."""

    positionals: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    assignments: list[Assignment] = field(default_factory=list)
    """In the order of precedence: later ones win."""
    warnings: list[str] = field(default_factory=list)
    """Lines for stderr: flags that were accepted but change nothing."""
    help_word: str | None = None
    """Set when `--help` was asked: "" for all, else the word searched."""
