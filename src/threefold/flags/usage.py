"""`--help` and `--help=WORD` as plain text, from the tables; defaults in brackets. Prints nothing itself."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import fields

from threefold.config import EngineConfig, ServerConfig
from threefold.flags.elsewhere import REFUSALS
from threefold.flags.flag import Flag
from threefold.flags.values import switch

Group = tuple[str, Sequence[Flag]]
_SECTIONS = {"server": ServerConfig(), **{one.name: getattr(EngineConfig(), one.name) for one in fields(EngineConfig)}}
_DEFAULTS = {
    f"{name}.{one.name}": getattr(config, one.name) for name, config in _SECTIONS.items() for one in fields(config)
}
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
    remark = flag.no_effect if flag.no_effect not in ("", "silent") else _default(flag)
    return [_row(left, f"{flag.help} ({remark})" if remark else flag.help)]


def _default(flag: Flag) -> str:
    """What holds where the flag is left out; "" where that depends, or the help says it."""
    value = _DEFAULTS.get(flag.field)
    if flag.kind == "switch":
        return {True: "on", False: "off"}[value] if flag.parse is switch and isinstance(value, bool) else ""
    if flag.kind != "value" or value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row(left: str, right: str) -> str:
    wrapped = textwrap.wrap(right, _WIDTH - _INDENT) or [""]
    first = f"  {left:<{_INDENT - 3}} {wrapped[0]}"
    if len(left) > _INDENT - 3:
        first = f"  {left}\n{'':<{_INDENT}}{wrapped[0]}"
    return "\n".join([first, *(f"{'':<{_INDENT}}{line}" for line in wrapped[1:])])
