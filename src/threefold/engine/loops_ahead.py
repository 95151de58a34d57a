"""Loops that numba compiles, compiled by processes of their own while the engine's is busy with other things.

On a machine's first start they take longer than all the rest, one after another; numba keeps them on the disk, where
the engine finds them. A process that fails costs nothing but its help. Knows nothing about what the loops do.

    python -m threefold.engine.loops_ahead JOB
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np

import threefold
from threefold.draft import texts
from threefold.draft.controller import prepare_admission, prepare_learning, prepare_outlook
from threefold.runner import loops
from threefold.sample import verify
from threefold.sample.native import Filters, draw_rows

STAMP = "threefold-loops"
NICENESS = 5
"""The engine's own start goes first where cores are few."""


def _draw() -> None:
    one = np.ones(1, dtype=np.float32)
    draw_rows(np.zeros((1, 2), dtype=np.float32), one, Filters(np.zeros(1, dtype=np.int64), one, one), np.zeros(1))


def _small() -> None:
    for prepare in (prepare_learning, texts.prepare, loops.prepare, verify.prepare):
        prepare()


JOBS: dict[str, Callable[[], None]] = {
    "draw": _draw,
    "outlook": prepare_outlook,
    "admit": prepare_admission,
    "small": _small,
}
"""What a process compiles, the longest first."""


class LoopsAhead:
    """Processes that compile what was not compiled here yet; none where all is on the disk. Ended on leaving.

    Args:
        jobs: of JOBS.
        stamp: says what was compiled; None = a file beside what numba keeps.
    """

    def __init__(self, jobs: Iterable[str], stamp: Path | None = None) -> None:
        jobs = tuple(jobs)
        self._stamp = stamp or Path(loops.lay_out.stats.cache_path) / STAMP
        self._digest = _digest(jobs)
        self._processes = [_started(job) for job in jobs] if _read(self._stamp) != self._digest else []

    def __enter__(self) -> LoopsAhead:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def wait(self) -> None:
        """Until all is on the disk."""
        codes = [process.wait() for process in self._processes]
        if codes and not any(codes):
            with suppress(OSError):  # then they start again the next time
                self._stamp.write_text(self._digest, encoding="ascii")


def _started(job: str) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 (a module of our own)
        [sys.executable, "-P", "-m", "threefold.engine.loops_ahead", job],
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,  # a terminal's Ctrl-C is for the parent alone
    )


def _read(stamp: Path) -> str:
    try:
        return stamp.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _digest(jobs: tuple[str, ...]) -> str:
    """Changes with all that makes numba compile anew: with Python, numba and every source file."""
    root = Path(threefold.__file__).parent
    paths = [path for room in ("draft", "runner", "sample", ".") for path in (root / room).glob("*.py")]
    files = sorted((str(path), path.stat().st_mtime_ns) for path in paths)
    return hashlib.sha256(repr((jobs, sys.version, numba.__version__, files)).encode()).hexdigest()


if __name__ == "__main__":
    os.nice(NICENESS)
    JOBS[sys.argv[1]]()
