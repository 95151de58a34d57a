"""Where a figure was measured: machine, versions, commit, command. A reading without these is a rumour."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
from importlib import metadata
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
        },
    }


def cpu_model() -> str:
    """The processor's name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, "+changes" behind it when files differ; None outside of one."""
    # ls-files: an installed package may lie inside somebody else's repository.
    if _git("ls-files", "--error-unmatch", "errors.py") is None:
        return None
    commit = _git("rev-parse", "HEAD")
    return commit and commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no", ".") else "")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 fixed words
            ["git", "-C", str(_PACKAGE), *words],  # noqa: S607 whichever git the user has
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
