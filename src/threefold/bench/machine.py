"""Where a figure was measured: machine, cards, versions, commit, command. A reading without these is a rumour.

Asks neither torch nor a card: who sends load to a server elsewhere has use for neither.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from threefold import __version__

_PACKAGE = Path(__file__).resolve().parents[1]


def provenance(command: list[str]) -> dict[str, Any]:
    """Facts for a result's JSON; `command` is what was typed after `threefold`."""
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(["threefold", *command]),
        "git_commit": git_commit(),
        "machine": {
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "system": platform.platform(),
            "python": platform.python_version(),
            "torch": _version("torch"),
            "threefold": __version__,
            **cards(),
        },
    }


def described(result: Mapping[str, Any]) -> str:
    """Commit, day and machine of a result in a line."""
    commit, has_changes, _ = (result["git_commit"] or "unknown").partition("+")
    machine = result["machine"]
    cards = f"{machine['cards']}, " if machine.get("cards") else ""
    return (
        f"commit {commit[:12]}{' with changes' * bool(has_changes)}, {result['date'][:10]}, {cards}{machine['cpu']}, "
        f"{machine['cores']} cores"
    )


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def cards() -> dict[str, Any]:
    """This machine's cards as nvidia-smi names them, and the CUDA that torch was built for; {} without a card."""
    said = _run("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    found = [parts for line in (said or "").splitlines() if len(parts := line.split(", ")) == 3]
    if not found:
        return {}
    names = Counter(name for name, _, _ in found)
    return {
        "cards": ", ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items()),
        "card_memory": found[0][2],
        "driver": found[0][1],
        "cuda": _torch_cuda(),
    }


def _torch_cuda() -> str | None:
    """From torch's own file, unread by Python: to import torch takes seconds."""
    spec = find_spec("torch")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8") if spec and spec.origin else ""
    except OSError:
        return None
    found = re.search(r"^cuda\b.*'([\d.]+)'$", text, flags=re.MULTILINE)
    return found[1] if found else None


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, "+changes" behind it when files differ; None outside of one."""
    # ls-files: an installed package may lie inside somebody else's repository.
    if _git("ls-files", "--error-unmatch", "errors.py") is None:
        return None
    commit = _git("rev-parse", "HEAD")
    return commit and commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", ".") else "")


def _git(*words: str) -> str | None:
    return _run("git", "-C", str(_PACKAGE), *words)


def _run(*words: str) -> str | None:
    """What a program says; None when it is not there, or fails."""
    try:
        done = subprocess.run(  # noqa: S603 fixed words
            words,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
