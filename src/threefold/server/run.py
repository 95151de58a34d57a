"""A server's life: take the port, start the engine, serve, drain, leave. Exit code 0, or 1 when the engine died.

What answers requests is imported while the engine starts.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import uvicorn
import uvloop

from threefold.config import EngineConfig, ServerConfig
from threefold.errors import ConfigError
from threefold.server.call import Client
from threefold.server.engine_start import start_engine
from threefold.server.http_protocol import bounded_protocol
from threefold.server.listen import bind_socket, check_tls, url_of
from threefold.server.log_setup import set_up_logging
from threefold.server.recording import FileRecorder, NoRecorder, Recorder
from threefold.server.stats_log import log_stats

if TYPE_CHECKING:
    from threefold.server.state import ServerState

ENGINE_CHECK_S = 0.2
LAST_WRITES_S = 2.0
"""Time for the last frames to reach their clients once nothing runs any more."""


class RunningClient(Client, Protocol):
    """A client whose engine this process started and must end."""

    async def drain(self, timeout_s: float) -> int:
        """Let running requests end, then abort the rest."""

    async def close(self) -> None:
        """End the engine process."""


StartClient = Callable[[EngineConfig], Awaitable[RunningClient]]


def run_server(
    engine_config: EngineConfig, server_config: ServerConfig, *, start_client: StartClient = start_engine
) -> int:
    """Serve until a signal comes or the engine dies.

    Args:
        engine_config: what to run.
        server_config: how to serve it.
        start_client: starts the engine; tests bring fakes.

    Returns:
        The process's exit code: 0 after a signal, 1 after the engine's death.

    Raises:
        OperatorError: the server cannot start; the message is one line.
    """
    set_up_logging(server_config.log_format, server_config.log_level)
    check_tls(server_config)
    template = _template_text(engine_config.model.chat_template)
    recorder = _recorder(server_config)
    listener = bind_socket(server_config)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(engine_config, server_config, template, recorder, listener, start_client))
    finally:
        if listener is not None:
            listener.close()


def _recorder(config: ServerConfig) -> Recorder:
    return NoRecorder() if config.record is None else FileRecorder(Path(config.record), config.record_content)


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, which know nothing of draining."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to this module."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._on_ready()


async def _run(  # noqa: PLR0917 (what a life is made of)
    engine_config: EngineConfig,
    config: ServerConfig,
    chat_template: str | None,
    recorder: Recorder,
    listener: socket.socket | None,
    start_client: StartClient,
) -> int:
    starting = asyncio.ensure_future(start_client(engine_config))
    await asyncio.sleep(0)  # the engine's process is on its way
    from threefold.server.app import create_app

    client = await starting
    background: list[asyncio.Task[None]] = []
    try:
        app = create_app(client, config=config, chat_template=chat_template, recorder=recorder)
        state: ServerState = app.state.server
        server = _HttpServer(_uvicorn_config(app, config), lambda: _announce(state, url_of(config, listener)))
        if config.log_stats_interval_s > 0:
            background.append(asyncio.create_task(log_stats(client, config.log_stats_interval_s)))
        return await _serve_until_told(server, client, state, [listener] if listener is not None else None)
    finally:
        for task in background:
            task.cancel()
        await client.close()


async def _serve_until_told(
    server: _HttpServer, client: RunningClient, state: ServerState, sockets: list[socket.socket] | None
) -> int:
    first, second = _signals()
    serving = asyncio.create_task(server.serve(sockets))
    death = asyncio.create_task(_engine_death(client))
    told = asyncio.create_task(first.wait())
    await asyncio.wait((serving, death, told), return_when=asyncio.FIRST_COMPLETED)
    if told.done() and not death.done():
        await _drain(client, state, second, death)
    server.should_exit = True
    server.force_exit = second.is_set()
    is_dead = death.done()
    for task in (death, told):
        task.cancel()
    await serving
    if is_dead:
        _say("the engine process ended; the server stops")
    return 1 if is_dead else 0


async def _drain(client: RunningClient, state: ServerState, second: asyncio.Event, death: asyncio.Task[None]) -> None:
    """Let what runs end, until the time is up, a second signal comes or the engine dies."""
    state.is_draining = True
    if state.num_in_flight:
        _say(f"draining: {state.num_in_flight} requests have {state.config.shutdown_timeout_s:g} s; again to stop now")
    draining = asyncio.create_task(client.drain(state.config.shutdown_timeout_s))
    hurry = asyncio.create_task(second.wait())
    await asyncio.wait((draining, hurry, death), return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurry):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await draining


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events for the first and the second SIGINT or SIGTERM."""
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() else first).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return first, second


async def _engine_death(client: Client) -> None:
    while client.is_alive:
        await asyncio.sleep(ENGINE_CHECK_S)


def _uvicorn_config(app: Callable[..., object], config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        uds=config.uds,
        http=bounded_protocol(config.max_header_bytes),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(LAST_WRITES_S),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
    )


def _template_text(asked: str | None) -> str | None:
    """The chat template's text, where a file or the text itself was given."""
    if asked is None:
        return None
    is_text = "{%" in asked or "{{" in asked
    try:
        text = asked if is_text else Path(asked).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {asked}: cannot be read as a text file") from error
    from threefold.text.template_worker import syntax_fault

    fault = syntax_fault(text)
    if fault is not None:
        raise ConfigError(f"--chat-template{'' if is_text else ' ' + asked}: is no valid Jinja template: {fault}")
    return text


def _announce(state: ServerState, url: str) -> None:
    gc.collect()
    gc.freeze()  # what stands now stays; collections need not look at it again
    for line in state.client.info.notes:
        _say(line)
    config = state.config
    if config.host not in ("127.0.0.1", "localhost", "::1") and not config.api_keys and config.uds is None:
        _say("open to whoever reaches this port; --api-key KEY closes it")
    _say(f"ready: {state.model_name} at {url}/v1 (status {url}/, metrics {url}/metrics)")
    _say(_curl(state, url))


def _curl(state: ServerState, url: str) -> str:
    key = " -H 'Authorization: Bearer KEY'" if state.config.api_keys else ""
    place = f"--unix-socket {state.config.uds} http://localhost" if state.config.uds else url
    if state.renderer is not None:
        path, ask = "chat/completions", '"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64'
    else:
        path, ask = "completions", '"prompt": "Once upon a time", "max_tokens": 64'
    return f"try: curl {place}/v1/{path}{key} -H 'Content-Type: application/json' -d '{{{ask}}}'"


def _say(line: str) -> None:
    print(line, flush=True)
