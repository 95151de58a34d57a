"""Where a figure comes from: command, commit, machine, day. A reading without these is a rumour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

_COMMIT_DIGITS = 10


class Origin(NamedTuple):
    """What a result's file says of how it came about; "" = it does not."""

    file: str
    command: str
    commit: str
    machine: str
    date: str

    @property
    def short(self) -> str:
        """Under a figure."""
        said = [self.commit and f"commit {self.commit}", self.machine.partition(";")[0], self.date[:10]]
        return " · ".join(part for part in said if part) or self.file

    def lines(self) -> Markup:
        """Under a section, whole."""
        if not (self.command or self.commit or self.machine):
            return Markup(
                "<p class='origin'>{}: the file does not say by which command or on which machine.</p>"
            ).format(self.file)
        command = Markup("<code>{}</code>").format(self.command) if self.command else "command not recorded"
        facts = [f"commit {self.commit}" if self.commit else "commit not recorded"]
        facts += [self.machine or "machine not recorded", self.date]
        about = " · ".join(part for part in facts if part)
        return Markup("<p class='origin'>{} {}<br>{}</p>").format("Measured by", command, about)


def origin_of(data: Mapping[str, Any], file: str) -> Origin:
    """Read it from a result."""
    return Origin(
        file,
        _text(data.get("command")),
        _short_commit(_text(data.get("git_commit"))),
        _machine(data),
        _text(data.get("date")).replace("T", " "),
    )


def _machine(data: Mapping[str, Any]) -> str:
    """A host as bench.machine describes it, and the device that an advisor measured, or the cards that are there."""
    found = data.get("machine")
    host = found if isinstance(found, Mapping) else {}
    facts = data.get("facts")
    device = _text((facts if isinstance(facts, Mapping) else host).get("device") or host.get("cards"))
    cores = f"{host['cores']} cores" if host.get("cores") else ""
    main = ", ".join(part for part in (device, _text(host.get("cpu")), cores) if part)
    memory = host.get("memory_bytes")
    room = f"{memory / 2**30:.0f} GiB" if isinstance(memory, int | float) else ""
    versions = [
        f"{name} {_text(host.get(name))}"
        for name in ("threefold", "torch", "cuda", "driver", "python")
        if host.get(name)
    ]
    return "; ".join(part for part in (main, ", ".join(part for part in (room, *versions) if part)) if part)


def _short_commit(commit: str) -> str:
    digits, has_changes, _ = commit.partition("+")
    return digits[:_COMMIT_DIGITS] + (" with changes" if has_changes else "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
