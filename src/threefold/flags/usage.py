"""`--help` and `--help=WORD` as plain text, from the tables. Prints nothing itself."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from threefold.flags.elsewhere import REFUSALS
from threefold.flags.flag import Flag

Group = tuple[str, Sequence[Flag]]
_INDENT = 40
_WIDTH = 118


def usage(command: str, synopsis: str, groups: Sequence[Group], word: str = "") -> str:
    """All flags under their headings, or those whose name or help holds `word`."""
    lines = [f"usage: {command} {synopsis}".rstrip()]
    needle = "" if word == "all" else word.lower().lstrip("-").replace("_", "-")
    for heading, flags in groups:
        shown = [flag for flag in flags if _matches(flag, needle)]
        if shown:
            lines += ["", f"{heading}:", *(line for flag in shown for line in _describe(flag))]
    if needle:
        refused = [(name, refusal.reason) for name, refusal in sorted(REFUSALS.items()) if needle in name]
        if refused:
            lines += ["", "Refused:", *(_row(f"--{name}", reason) for name, reason in refused)]
        if len(lines) == 1:
            lines += ["", f"no flag of this command has to do with '{word}'"]
    else:
        lines += ["", f"{command} --help=WORD searches; --config FILE.yaml takes the same names."]
    return "\n".join(lines)


def _matches(flag: Flag, needle: str) -> bool:
    return needle in " ".join(flag.spellings) or needle in flag.help.lower()


def _describe(flag: Flag) -> list[str]:
    names = f"--[no-]{flag.name}" if flag.kind == "switch" else f"--{flag.name}"
    short = [alias for alias in flag.aliases if not alias.startswith("--")]
    left = ", ".join([*short, names]) + (f" {flag.metavar}" if flag.metavar else "")
    if flag.kind == "list":
        left += " ..."
    help_text = f"{flag.help} ({flag.no_effect})" if flag.no_effect not in ("", "silent") else flag.help
    return [_row(left, help_text)]


def _row(left: str, right: str) -> str:
    wrapped = textwrap.wrap(right, _WIDTH - _INDENT) or [""]
    first = f"  {left:<{_INDENT - 3}} {wrapped[0]}"
    if len(left) > _INDENT - 3:
        first = f"  {left}\n{'':<{_INDENT}}{wrapped[0]}"
    return "\n".join([first, *(f"{'':<{_INDENT}}{line}" for line in wrapped[1:])])
