"""The engine process as its parent sees it: start, messages both ways, death noticed at once, nothing left behind.

Knows nothing about what the messages mean. The socket lies in a fresh folder that only this user can enter; the folder
goes when the process does, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from threefold.config import engine_environment
from threefold.engine import wire
from threefold.errors import ConfigError, EngineDeadError

MAX_MESSAGES_A_TURN = 8  # then the event loop's other work has its turn
MAX_SOCKET_PATH_BYTES = 100  # the system's limit is 107
STDERR = 2


class EngineProcess:
    """A running engine process. All methods belong to the event loop in which it was made.

    Attributes:
        pid: its process id.
        exit: done when the process has ended and all it had sent was handed on; the exit code.
    """

    def __init__(self, factory: str, config: dict[str, Any], on_message: Callable[[wire.FromEngine], None]) -> None:
        """Start the process; it builds its engine and sends Ready or StartFailed.

        Args:
            factory: `package.module:function` that builds the engine (see engine/loop.py).
            config: plain data for it.
            on_message: called with each message, in the event loop.
        """
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self.exit: asyncio.Future[int] = self._loop.create_future()
        self._folder = Path(tempfile.mkdtemp(prefix="threefold-"))
        self._context = zmq.Context()
        try:
            address = self._bind()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "threefold.engine.loop"],  # -P: nothing is imported from where one stands
                stdin=subprocess.PIPE,
                stdout=STDERR,
                env=engine_environment(),
                start_new_session=True,  # a terminal's Ctrl-C is for the parent alone
            )
        except BaseException:
            self._context.destroy(linger=0)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.pid = self._process.pid
        self._fd = self._socket.FD
        self._loop.add_reader(self._fd, self._read)
        threading.Thread(target=self._await_exit, daemon=True).start()
        self._tell(wire.Launch(factory, config, address, parent_pid=os.getpid()))

    def send(self, message: wire.Message) -> None:
        """Send without waiting; raises EngineDeadError when the process is gone."""
        if self.exit.done():
            raise EngineDeadError("the engine process has ended")
        data = wire.encode(message)
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again as error:
            raise EngineDeadError("the engine process does not listen") from error
        self._loop.call_soon(self._read)  # sending may have swallowed the sign that something came

    async def stop(self, timeout_s: float) -> None:
        """End the process: by request, after `timeout_s` by force."""
        with contextlib.suppress(EngineDeadError):
            self.send(wire.Shutdown())
        try:
            await asyncio.wait_for(asyncio.shield(self.exit), timeout_s)
        except TimeoutError:
            self.kill()
            await self.exit

    def kill(self) -> None:
        """End the process by force."""
        self._process.kill()

    def _bind(self) -> str:
        address = f"ipc://{self._folder}/engine"
        if len(address) > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(f"{self._folder} is too long a path for a socket; set TMPDIR to a shorter one")
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._socket.set(zmq.RCVHWM, wire.MAX_QUEUED_MESSAGES)
        self._socket.set(zmq.SNDHWM, 0)  # what waits here is bounded by the client's own limit on requests
        self._socket.set(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        self._socket.bind(address)
        return address

    def _tell(self, launch: wire.Launch) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: that is reported by `exit`
            pipe.write(msgspec.json.encode(launch) + b"\n")
            pipe.flush()

    def _read(self) -> None:
        """Hand on what has come. The socket's descriptor signals changes only, so it is emptied or looked at again."""
        for _ in range(MAX_MESSAGES_A_TURN):
            if self._socket.closed or not self._read_one():
                return
        self._loop.call_soon(self._read)

    def _read_one(self) -> bool:
        if not self._socket.poll(0):
            return False
        self._on_message(wire.decode_from_engine(self._socket.recv(zmq.NOBLOCK)))
        return True

    def _await_exit(self) -> None:
        """In a thread of its own: the one wait that works under every event loop."""
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(self._on_exit, code)

    def _on_exit(self, code: int) -> None:
        while self._read_one():
            pass
        self._loop.remove_reader(self._fd)
        self._context.destroy(linger=0)
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.exit.set_result(code)


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
