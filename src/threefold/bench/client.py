"""One HTTP/1.1 connection that reads server-sent events cheaply. Knows the wire, not the load.

Client and server share the machine's cores, so what the client spends the server lacks: bytes go from the socket
through httptools' parser straight to a frame splitter, without a task switch, a header object or a JSON tree a chunk.
Only the end of a request wakes a task.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import httptools

from threefold.errors import ConfigError

CONNECT_TIMEOUT_S = 10.0
_MAX_ERROR_BYTES = 64 * 1024


class Sink(Protocol):
    """Takes a response's body as it arrives."""

    def feed(self, data: bytes) -> None:
        """Take the next piece of the body, cut anywhere."""


class TransferError(Exception):
    """The exchange broke: no connection, a connection lost midway, bytes that are no HTTP."""


class UnreachableError(TransferError):
    """Nobody listens there, or there is no such place: trying again at once is of no use."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and the headers that every request carries."""

    host: str
    port: int
    is_tls: bool = False
    base_path: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_url(cls, url: str, headers: tuple[tuple[str, str], ...] = ()) -> Endpoint:
        """Read `http://host:port[/prefix]`; a trailing /v1 is taken away, since paths bring it.

        Raises:
            ConfigError: it is no such address.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"--url {url}: wants an address such as http://127.0.0.1:8000")
        if parts.username is not None:
            credentials = base64.b64encode(f"{parts.username}:{parts.password or ''}".encode()).decode()
            headers = (*headers, ("Authorization", f"Basic {credentials}"))
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, path, headers)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of one request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.base_path}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "User-Agent: threefold-bench",
            "Accept: */*",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection:
    """A kept-alive connection, opened on demand and again whenever it was closed; one exchange at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._wire: _Wire | None = None

    async def exchange(self, request: bytes, sink: Sink) -> int:
        """Send a request, feed a 200's body to `sink`, return the status; another status' body is `error_text`.

        Raises:
            TransferError: the exchange broke; the reason is one line.
        """
        if self._wire is None or not self._wire.is_open:
            self._wire = await _open(self.endpoint)
        return await self._wire.exchange(request, sink)

    @property
    def error_text(self) -> str:
        """The body of the last response that was not a 200, as text."""
        return self._wire.error_body.decode(errors="replace") if self._wire is not None else ""

    def close(self) -> None:
        """Close the connection; the next exchange opens a new one."""
        if self._wire is not None:
            self._wire.close()


async def _open(endpoint: Endpoint) -> _Wire:
    context = ssl.create_default_context() if endpoint.is_tls else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, wire = await loop.create_connection(_Wire, endpoint.host, endpoint.port, ssl=context)
    except TimeoutError:
        raise TransferError("connecting timed out") from None
    except ConnectionRefusedError:
        raise UnreachableError("connection refused") from None
    except OSError as error:
        raise UnreachableError(f"cannot connect: {error.strerror or error}") from None
    return wire


class _Wire(asyncio.Protocol):
    """One transport's life. Never opened again: what an old transport reports late meets nobody else's exchange."""

    def __init__(self) -> None:
        self.is_open = False
        self.error_body = bytearray()
        self._transport: Any = None
        self._parser: Any = None
        self._done: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._feed: Callable[[bytes], None] = _ignore
        self._status = 0
        self._is_framed = False
        self._can_reuse = False

    async def exchange(self, request: bytes, sink: Sink) -> int:
        self._status = 0
        self._is_framed = self._can_reuse = False
        self._sink, self._feed = sink, _ignore
        self.error_body.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._done = None
            if not self._can_reuse:  # also when given up midway: bytes of the old answer are still to come
                self.close()
        return self._status

    def close(self) -> None:
        self.is_open = False
        self._transport.close()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's signature
        if self._status and not self._is_framed:  # HTTP/1.0 manners: such a body ends with the connection
            self.on_message_complete()
        self._fail("connection lost midway" if self._status else "connection lost before an answer")

    # httptools' callbacks

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 httptools' signature
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_framed = True

    def on_headers_complete(self) -> None:
        assert self._sink is not None
        self._status = self._parser.get_status_code()
        self._feed = self._sink.feed if self._status == 200 else self._take_error

    def on_body(self, body: bytes) -> None:
        self._feed(body)

    def on_message_complete(self) -> None:
        self._can_reuse = self._is_framed and self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _take_error(self, data: bytes) -> None:
        if len(self.error_body) < _MAX_ERROR_BYTES:
            self.error_body += data

    def _fail(self, reason: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(TransferError(reason))
        self.close()


def _ignore(data: bytes) -> None:
    """Body bytes before the headers: there are none."""


class Body:
    """A sink that keeps a whole body, for small documents."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, data: bytes) -> None:
        """Append."""
        self.data += data


async def why_unreachable(endpoint: Endpoint) -> str:
    """Why no connection can be had; "" when somebody listens there, slow as they may be."""
    try:
        (await _open(endpoint)).close()
    except UnreachableError as error:
        return str(error)
    except TransferError:
        pass  # too slow to take a connection now: there is somebody
    return ""


async def get(endpoint: Endpoint, path: str) -> tuple[int, bytes]:
    """Fetch a small document over a connection of its own.

    Returns:
        Status, and the body when the status is 200.

    Raises:
        TransferError: the exchange broke.
    """
    connection, body = Connection(endpoint), Body()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            status = await connection.exchange(endpoint.request("GET", path), body)
    except TimeoutError:
        raise TransferError(f"no answer to GET {path} within {CONNECT_TIMEOUT_S:g} s") from None
    finally:
        connection.close()
    return status, bytes(body.data)
