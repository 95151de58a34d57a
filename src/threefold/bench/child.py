"""A server as a child process: started, awaited until it is ready, ended whatever happens. Knows no load."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from threefold.errors import EngineDeadError

_READY = re.compile(r"^ready: .* at (http://[^/\s]+)", re.MULTILINE)
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


@contextmanager
def child_server(command: Sequence[str], timeout_s: float = 600.0) -> Iterator[str]:
    """The server's address while it runs.

    Args:
        command: starts a server that prints `ready: … at http://…`.
        timeout_s: it must be ready within.

    Raises:
        EngineDeadError: it ended before it was ready, with its last line, or was not ready in time.
    """
    with tempfile.TemporaryFile() as output:
        # A session of its own: Ctrl-C is for the load, which then ends the server.
        process = subprocess.Popen(  # noqa: S603 our own command
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield _await_ready(process, output, timeout_s)
        finally:
            _end(process)


def _so_far(output: IO[bytes]) -> str:
    """What was written, read without moving the place where the child writes next: both share it."""
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), size, 0).decode("utf-8", "replace")


def _await_ready(process: subprocess.Popen[bytes], output: IO[bytes], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        code = process.poll()
        said = _so_far(output)
        found = _READY.search(said)
        if found is not None:
            return found[1]
        if code is not None or time.monotonic() > deadline:
            last = said.strip().rpartition("\n")[2]
            what = f"was not ready within {timeout_s:g} s" if code is None else "ended before it was ready"
            raise EngineDeadError(f"the server {what}, exit code {code}" + (f": {last}" if last else ""))
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
