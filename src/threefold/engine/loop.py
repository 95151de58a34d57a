"""The engine process: takes requests from the socket, runs steps, sends what they brought. Ids only, no text.

Started by the client as `python -m threefold.engine.loop`, with one line of JSON (wire.Launch) on its standard input.
The pipe stays open as long as the parent lives: when it closes, or the parent's id changes, the process ends, whatever
it does. Interrupts are left to the parent. One request's fault ends that request; a fault of the executor as a whole
ends the process, with a message first and exit code 1.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import zmq

from threefold.engine import wire
from threefold.engine.core import EngineCore
from threefold.engine.outputs import EngineInfo
from threefold.errors import CallerError, ConfigError, OperatorError, OverloadedError
from threefold.request import Request

PARENT_CHECK_S = 1.0
LINGER_MS = 1000
MAX_FAULT_CHARS = 500
EXIT_FAULT = 1
EXIT_OPERATOR = 2
EXIT_ORPHAN = 3

log = logging.getLogger("threefold.engine")


class BuiltEngine(NamedTuple):
    """What a factory returns."""

    core: EngineCore
    info: EngineInfo


Factory = Callable[[dict[str, Any]], BuiltEngine]
"""Builds an engine from plain data; raises OperatorError where the operator can mend it."""


class EngineLoop:
    """Runs one engine for one client, in this thread, until it is told to stop."""

    def __init__(self, core: EngineCore, socket: zmq.Socket[bytes]) -> None:
        self._core = core
        self._socket = socket
        self._is_stopping = False

    def run(self) -> None:
        """Serve until a Shutdown; an exception out of it means that the engine is dead."""
        while not self._is_stopping:
            self._receive(can_wait=not self._core.has_work)
            if self._core.has_work and not self._is_stopping:
                deltas = self._core.step()
                if deltas:
                    self._send(wire.pack_step(deltas))

    def _receive(self, *, can_wait: bool) -> None:
        """Handle all messages that have come; with nothing to do, wait for the first."""
        if can_wait:
            self._handle(wire.decode_to_engine(self._socket.recv()))
        while not self._is_stopping and self._socket.poll(0):
            self._handle(wire.decode_to_engine(self._socket.recv()))

    def _send(self, message: wire.Message) -> None:
        self._socket.send(wire.encode(message))

    def _handle(self, message: wire.ToEngine) -> None:
        match message:
            case wire.AddRequest():
                self._add(message)
            case wire.Abort(request_ids):
                self._core.abort(request_ids)
            case wire.GetStats(ticket):
                self._send(wire.Stats(ticket, self._core.stats()))
            case wire.ResetPrefixCache(ticket):
                self._send(wire.PrefixCacheReset(ticket, self._core.reset_prefix_cache()))
            case wire.Shutdown():
                self._is_stopping = True

    def _add(self, message: wire.AddRequest) -> None:
        try:
            requests = self._requests(message)
            for request in requests:
                self._core.add_request(request)
        except CallerError as error:
            self._reject(message, str(error), is_our_fault=False)
        except OverloadedError as error:
            self._reject(message, str(error), is_our_fault=False, retry_after_s=error.retry_after_s)
        except Exception as error:  # contains one request's fault; logged, and told to its client
            log.exception("a request could not be added")
            self._reject(message, describe(error), is_our_fault=True)

    def _reject(
        self, message: wire.AddRequest, reason: str, *, is_our_fault: bool, retry_after_s: float | None = None
    ) -> None:
        self._core.abort(message.request_ids)
        self._send(wire.RequestRejected(message.request_ids, reason, is_our_fault, retry_after_s))

    def _requests(self, message: wire.AddRequest) -> list[Request]:
        """One request an answer."""
        return [
            Request(
                request_id,
                message.prompt_token_ids,
                replace(message.params, seed=seed),
                max_total_tokens=message.max_total_tokens,
                end_token_ids=frozenset(message.end_token_ids),
                arrival_s=message.arrival_s,
                priority=message.priority,
                cache_salt=message.cache_salt,
            )
            for request_id, seed in zip(message.request_ids, message.seeds, strict=True)
        ]


def describe(error: Exception) -> str:
    """A fault of ours in one line; its traceback is in the log."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_FAULT_CHARS]


def load_factory(name: str) -> Factory:
    """The function behind `package.module:function`; raises ConfigError when there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import the engine factory {name!r}: {error}") from error
    return factory


def read_launch(fd: int) -> wire.Launch:
    """The first line of the pipe `fd`."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(fd, 65536)
        if not chunk:
            raise SystemExit(EXIT_ORPHAN)
        line += chunk
    return msgspec.json.decode(line, type=wire.Launch)


def end_with_parent(fd: int, launch: wire.Launch) -> NoReturn:
    """Wait for the parent's death, clear away its socket folder and end the process; a thread of its own."""
    while os.getppid() == launch.parent_pid:
        readable, _, _ = select.select([fd], [], [], PARENT_CHECK_S)
        if readable and not os.read(fd, 65536):
            break
    shutil.rmtree(Path(launch.address.removeprefix("ipc://")).parent, ignore_errors=True)
    os._exit(EXIT_ORPHAN)


def serve(launch: wire.Launch, socket: zmq.Socket[bytes]) -> int:
    """Build the engine, say so, run it to its end. Returns the exit code."""
    try:
        core, info = load_factory(launch.factory)(launch.config)
    except OperatorError as error:
        socket.send(wire.encode(wire.StartFailed(type(error).__name__, str(error))))
        return EXIT_OPERATOR
    except Exception as error:  # the client must hear of it, whatever it is
        log.exception("the engine could not be built")
        socket.send(wire.encode(wire.StartFailed("", describe(error))))
        return EXIT_FAULT
    try:
        socket.send(wire.encode(wire.Ready(info)))
        gc.collect()
        gc.freeze()  # what stands now stays: collections look at requests only
        EngineLoop(core, socket).run()
    except Exception as error:  # the client must hear why before the process ends
        log.exception("the engine failed")
        socket.send(wire.encode(wire.EngineFault(describe(error))))
        return EXIT_FAULT
    finally:
        core.close()
    return 0


def main() -> int:
    """Entry of the engine process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    fd = sys.stdin.fileno()
    launch = read_launch(fd)
    threading.Thread(target=end_with_parent, args=(fd, launch), daemon=True).start()
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.set(zmq.SNDHWM, wire.MAX_QUEUED_MESSAGES)
    socket.set(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
    socket.connect(launch.address)
    try:
        return serve(launch, socket)
    finally:
        socket.close(linger=LINGER_MS)
        context.term()


if __name__ == "__main__":
    sys.exit(main())
