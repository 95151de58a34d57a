"""From a call to bytes on the socket, whole or frame by frame; a client that leaves ends its request within a step.

Sends ASGI messages itself: between the engine's piece and the socket there is one await. While a slow reader holds that
await, the engine client merges the pieces that follow, so nothing queues here. A stream that is silent for long, before
its first piece too, carries comments, which clients skip and for which proxies leave the connection open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from threefold.engine.outputs import OutputDelta
from threefold.errors import CallerError, OverloadedError, ThreefoldError
from threefold.request import FinishReason
from threefold.server.call import Call, gathered, merged
from threefold.server.error_responses import ErrorReply, reply_to
from threefold.server.fanout import run_call
from threefold.server.limits import MAX_REPORTED_FIELDS
from threefold.server.record import CallRecord
from threefold.server.request_log import log_request
from threefold.server.shapes import Shape, check_not_failed
from threefold.server.state import ServerState

_DONE = b"data: [DONE]\n\n"
_COMMENT = b": keep-alive\n\n"
_logger = logging.getLogger(__name__)


class CallResponse(Response):
    """Runs a call when the server sends the response.

    Args:
        state: the server.
        call: what to run.
        shape: how its answers look.
    """

    def __init__(self, state: ServerState, call: Call, shape: Shape) -> None:
        super().__init__()
        self._state = state
        self._call = call
        self._shape = shape
        self._record = CallRecord(
            call, state.metrics, shows_cached=state.config.enable_prompt_tokens_details, clock=state.clock
        )
        self._tape = state.recorder.tape(call)
        self._is_open = False  # the head of a stream is sent: an error can only be a frame now
        self._silent_since_s: float | None = state.clock() if call.is_stream else None  # None: something is being sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's signature)
        """Run the call until it ends or its client leaves."""
        with self._state.in_flight():
            keep_alive_s = self._state.config.sse_keep_alive_interval_s
            look_s = keep_alive_s / 2 if self._call.is_stream and keep_alive_s else None
            await unless_disconnected(receive, self._run(send), look_s, lambda: self._keep_alive(send))
        if self._state.config.enable_log_requests:
            log_request(self._record.log_fields())

    async def _run(self, send: Send) -> None:
        end: FinishReason | None = FinishReason.ABORT  # of answers still open when this is left: the client is gone
        try:
            async with aclosing(run_call(self._state.client, self._call)) as pieces:
                if self._call.is_stream:
                    await self._send_frames(aiter(pieces), send)
                else:
                    await self._send_whole(aiter(pieces), send)
        except ThreefoldError as error:  # only before the response's head; later faults are handled by _send_frames
            is_refused = isinstance(error, CallerError | OverloadedError)
            end = None if is_refused else FinishReason.ERROR
            self._count_refusal(error)
            await send_reply(send, reply_to(error, self._state.config.overload_status))
        finally:
            if end is not None:
                self._record.close(end)
                self._tape.close()

    def _count_refusal(self, error: Exception) -> None:
        if isinstance(error, OverloadedError):
            self._state.metrics.rejections[error.reason] += 1

    async def _send_whole(self, pieces: AsyncIterator[OutputDelta], send: Send) -> None:
        answers: list[list[OutputDelta]] = [[] for _ in range(self._call.num_choices)]
        async for piece in pieces:
            self._record.note(piece)
            self._tape.note(piece)
            check_not_failed(piece)
            answers[piece.index].append(piece)
        metrics = self._record.timings() if self._call.wants_metrics else UNSET
        body = self._shape.body([merged(parts) for parts in answers], self._record.usage(), metrics)
        await send(_head(200, b"application/json", [*self._extra_headers(), (b"content-length", b"%d" % len(body))]))
        await send({"type": "http.response.body", "body": body})

    async def _send_frames(self, pieces: AsyncIterator[OutputDelta], send: Send) -> None:
        if self._call.stream_interval > 1:
            pieces = gathered(pieces, self._call.stream_interval)
        last = _DONE
        try:
            async for piece in pieces:
                check_not_failed(piece)
                await self._send_frame(piece, send)
            if self._call.wants_usage or self._call.wants_metrics:
                metrics = self._record.timings() if self._call.wants_metrics else UNSET
                last = self._shape.usage_frame(self._record.usage(), metrics) + _DONE
        except Exception as error:  # one request's fault: it is told to its client and ends here
            if not self._is_open:
                raise  # with a status of its own
            self._count_refusal(error)
            self._record.close(FinishReason.ERROR)
            if not isinstance(error, ThreefoldError):
                _logger.exception("a stream failed")
            last = b"data: " + reply_to(error).body + b"\n\n" + _DONE
        finally:
            self._silent_since_s = None  # no comment beside or behind what ends the response
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_frame(self, piece: OutputDelta, send: Send) -> None:
        self._silent_since_s = None
        if not self._is_open:
            await self._open(send)
        self._record.note(piece)
        self._tape.note(piece)
        frame = self._shape.frame(piece, self._record.usage() if self._call.wants_running_usage else UNSET)
        if frame:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        self._silent_since_s = self._state.clock()

    async def _keep_alive(self, send: Send) -> None:
        """A comment, if nothing has been sent for as long as was configured and nothing is being sent now."""
        since_s, now_s = self._silent_since_s, self._state.clock()
        if since_s is None or now_s - since_s < self._state.config.sse_keep_alive_interval_s:
            return
        self._silent_since_s = now_s
        if not self._is_open:
            await self._open(send)
        await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})

    async def _open(self, send: Send) -> None:
        self._is_open = True
        headers = [*self._extra_headers(), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await send(_head(200, b"text/event-stream; charset=utf-8", headers))

    def _extra_headers(self) -> list[tuple[bytes, bytes]]:
        return ignored_fields_header(self._call.ignored_fields)


async def unless_disconnected(
    receive: Receive, work: Awaitable[None], look_s: float | None, look: Callable[[], Awaitable[None]]
) -> None:
    """Await the work; cancel it as soon as the client is gone. Meanwhile `look` runs every look_s; None = never."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        while not (await asyncio.wait((task, gone), timeout=look_s, return_when=asyncio.FIRST_COMPLETED))[0]:
            await look()
        if task.done():
            task.result()
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_reply(send: Callable[[Message], Awaitable[None]], reply: ErrorReply) -> None:
    """Send an error as a whole response."""
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send(_head(reply.status, b"application/json", headers))
    await send({"type": "http.response.body", "body": reply.body})


def ignored_fields_header(names: list[str]) -> list[tuple[bytes, bytes]]:
    """The header that names fields nobody knows; names that no header could carry are left out."""
    fit = [name for name in names if name.isascii() and name.replace("_", "").replace("-", "").isalnum()]
    listed = ", ".join(name[:64] for name in fit[:MAX_REPORTED_FIELDS])
    return [(b"x-threefold-ignored-fields", listed.encode())] if listed else []


def _head(status: int, content_type: bytes, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *headers]}
