"""Words of a command line to assignments, in the grammar that users of vLLM know. Knows no particular flag.

- underscores and dashes are the same in a flag's name: --max_num_seqs
- --flag value, --flag=value, -tp 2; a value may be negative: --max-model-len -1
- switches are --flag and --no-flag
- a list takes words up to the next flag: --served-model-name a b
- a JSON flag also takes its keys one by one: --speculative-config.method ngram
- later wins; --config FILE.yaml goes before everything typed, so that the command line wins
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from threefold.errors import ConfigError
from threefold.flags.elsewhere import NOT_BUILT, REFUSALS, SAME_THING, SHORT_NAMES, Refusal, refusal_of
from threefold.flags.flag import Assignment, Flag, Parsed
from threefold.flags.loose_json import looks_like_pair, parse_object, parse_value

COMMAND_LINE = "command line"
_NEGATIVE_NUMBER = re.compile(r"^-\.?\d")
_GLUED_LEVEL = re.compile(r"^-O\d$")


class FlagSet:
    """The flags of one command, findable by any spelling."""

    def __init__(self, flags: Sequence[Flag], *, refuses_vllm: bool = True) -> None:
        """Take the command's flags; `refuses_vllm` answers other engines' flags by name."""
        self.flags = tuple(flags)
        self.refuses_vllm = refuses_vllm
        self._by_spelling = {spelling: flag for flag in flags for spelling in flag.spellings}

    def find(self, spelling: str) -> Flag | None:
        """The flag spelled so (with dashes), or None."""
        return self._by_spelling.get(spelling)

    def find_negated(self, spelling: str) -> Flag | None:
        """The switch that `--no-x` turns off, or None."""
        flag = self.find("--" + spelling.removeprefix("--no-")) if spelling.startswith("--no-") else None
        return flag if flag is not None and flag.kind == "switch" else None

    def refusal(self, spelling: str) -> tuple[str, Refusal, bool] | None:
        """(long name, why it is refused, whether it is the --no- form) of a flag known elsewhere; None if unknown."""
        if not self.refuses_vllm:
            return None
        name = SHORT_NAMES.get(spelling, spelling.lstrip("-"))
        for candidate, is_negated in ((name, False), (name.removeprefix("no-"), name.startswith("no-"))):
            found = refusal_of(candidate)
            if found is not None:
                return candidate, found, is_negated
        return None

    def unknown(self, spelling: str, where: str) -> ConfigError:
        """The error for a flag nobody knows, with the names that it may have been meant to be."""
        name = spelling.lstrip("-")
        same = SAME_THING.get(name) if self.refuses_vllm else None
        if same:
            return ConfigError(f"{where}unknown flag {spelling}; here it is called {same}")
        known = [flag.name for flag in self.flags] + (list(REFUSALS) if self.refuses_vllm else [])
        negated = {f"no-{flag.name}" for flag in self.flags if flag.kind == "switch"}
        near = difflib.get_close_matches(name, [*known, *negated], n=3, cutoff=0.6)
        near += [flag.name for flag in self.flags if name in flag.name and flag.name not in near][: 3 - len(near)]
        hint = f"; nearest: {', '.join('--' + candidate for candidate in near)}" if near else ""
        return ConfigError(f"{where}unknown flag {spelling}{hint}; --help=WORD searches")


def assign(flag: Flag, value: object, origin: str, parsed: Parsed) -> None:
    """Record one value, or the warning that it changes nothing."""
    if not flag.field:
        if flag.no_effect != "silent":
            parsed.warnings.append(f"--{flag.name} has no effect here: {flag.no_effect}")
        return
    parsed.assignments.append(Assignment(flag, value, origin))


def convert(flag: Flag, text: str, where: str = "") -> object:
    """Text to the flag's value.

    Raises:
        ConfigError: naming the flag and what would work.
    """
    try:
        return parse_object(text) if flag.kind == "json" else flag.parse(text)
    except ValueError as error:
        raise ConfigError(f"{where}--{flag.name} {error}") from None


def refuse(spelling: str, found: tuple[str, Refusal, bool], value: str, where: str = "") -> None:
    """Let a harmless value pass.

    Raises:
        ConfigError: for any other.
    """
    _, refusal, is_negated = found
    if ("false" if is_negated else value) in refusal.harmless:
        return
    shown = f"{spelling} {value}" if value not in ("", "true") else spelling
    reason = refusal.reason if refusal.reason.startswith(NOT_BUILT) else f"not built in Threefold: {refusal.reason}"
    raise ConfigError(f"{where}{shown}: {reason}")


def parse_words(words: Sequence[str], flags: FlagSet) -> Parsed:
    """Read a command line.

    Raises:
        ConfigError: one line, saying what was typed and what would work.
    """
    parsed = Parsed()
    reader = _Words(words)
    while (word := reader.take()) is not None:
        if word == "--":
            parsed.positionals += reader.rest()
        elif _is_flag(word):
            _read_flag(word, reader, flags, parsed)
        else:
            parsed.positionals.append(word)
    return parsed


class _Words:
    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._at = 0

    def take(self) -> str | None:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else None

    def take_value(self) -> str | None:
        """The next word, unless it is a flag or there is none."""
        if self._at >= len(self._words) or _is_flag(self._words[self._at]):
            return None
        return self.take()

    def take_pairs(self) -> list[str]:
        """The following `key:value` words: the rest of an object whose braces the shell expanded."""
        found: list[str] = []
        while self._at < len(self._words) and looks_like_pair(self._words[self._at]):
            found.append(self._words[self._at])
            self._at += 1
        return found

    def rest(self) -> list[str]:
        found, self._at = self._words[self._at :], len(self._words)
        return found


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NEGATIVE_NUMBER.match(word)


def _read_flag(word: str, reader: _Words, flags: FlagSet, parsed: Parsed) -> None:
    if _GLUED_LEVEL.match(word):  # -O2
        word = f"-O={word[2:]}"
    spelling, has_value, inline = word.partition("=")
    spelling, _, key = spelling.partition(".")
    spelling = spelling.replace("_", "-")
    value = inline if has_value else None
    if spelling in ("--help", "-h"):
        parsed.help_word = value or ""
        return
    flag = flags.find(spelling)
    if flag is not None:
        _read_known(flag, spelling, key=key, value=value, reader=reader, parsed=parsed)
        return
    negated = flags.find_negated(spelling)
    if negated is not None and value is None:
        assign(negated, convert(negated, "false"), COMMAND_LINE, parsed)
        return
    found = flags.refusal(spelling)
    if found is None:
        raise flags.unknown(spelling, "")
    if value is None and found[1].takes_value and not found[2]:
        value = reader.take_value()
    refuse(spelling, found, value if value is not None else "true")


def _read_known(flag: Flag, spelling: str, *, key: str, value: str | None, reader: _Words, parsed: Parsed) -> None:
    if flag.kind == "switch":
        assign(flag, convert(flag, value if value is not None else "true"), COMMAND_LINE, parsed)
        return
    first = value if value is not None else reader.take_value()
    if first is None:
        raise ConfigError(f"{spelling} wants a value: {flag.help}")
    if flag.kind == "list":
        items = [first]
        while value is None and (more := reader.take_value()) is not None:
            items.append(more)
        assign(flag, convert_list(flag, items), COMMAND_LINE, parsed)
    elif flag.kind == "json":
        pairs = reader.take_pairs() if not key and not first.lstrip().startswith("{") and looks_like_pair(first) else []
        given = {key: parse_value(first)} if key else convert(flag, " ".join([first, *pairs]))
        assign(flag, given, COMMAND_LINE, parsed)
    elif key:
        raise ConfigError(f"{spelling}.{key}: {spelling} has no keys; it takes one value: {flag.help}")
    else:
        assign(flag, convert(flag, first), COMMAND_LINE, parsed)


def convert_list(flag: Flag, items: Sequence[str], where: str = "") -> tuple[object, ...]:
    """Each word of a list to values, joined."""
    found: list[object] = []
    for item in items:
        value = convert(flag, item, where)
        assert isinstance(value, tuple)
        found += value
    return tuple(found)
