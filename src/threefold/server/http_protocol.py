"""uvicorn's HTTP protocol with bounds that its parser does not have: size of a request's head, and time to send it.

httptools gathers a header until it is whole, so a limit on whole headers comes too late; bytes that brought nothing
whole are counted as well. Knows sockets and bytes, nothing of requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from threefold.server.error_responses import error_body
from threefold.server.limits import HEAD_TIMEOUT_S, MAX_HEADERS


class _HeadTooLargeError(Exception):
    """Ends parsing; the connection is answered and closed."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. Subclassed by `bounded_protocol` with the limit that holds."""

    max_header_bytes = 64 * 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_silent_bytes = 0  # received since the parser last had something whole
        self._num_head_bytes = 0
        self._num_headers = 0
        self._is_head_too_large = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client connected and has to speak."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; refuse them when they add up to more than a head may have."""
        self._num_silent_bytes += len(data)
        super().data_received(data)
        if self._num_silent_bytes > self.max_header_bytes and not self.transport.is_closing():
            self._is_head_too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._num_head_bytes = self._num_headers = 0
        self._start_timer()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole header, or a trailer."""
        self._num_silent_bytes = 0
        self._num_headers += 1
        self._count(len(name) + len(value) + 4)  # ": " and the line's end
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._num_silent_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._num_silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._num_silent_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, in the API's error form, and close."""
        status = 431 if self._is_head_too_large else 400
        if status == 431:
            msg = f"the request's head exceeds {self.max_header_bytes} bytes or {MAX_HEADERS} headers"
        body = error_body(msg, "invalid_request_error", None, status)
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self.max_header_bytes or self._num_headers > MAX_HEADERS:
            self._is_head_too_large = True
            raise _HeadTooLargeError

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end_slow_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_slow_head(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def bounded_protocol(max_header_bytes: int) -> type[BoundedHttpProtocol]:
    """The protocol with its limit, as a class for uvicorn's configuration."""
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), {"max_header_bytes": max_header_bytes})
