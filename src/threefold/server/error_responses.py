"""Every error as OpenAI's clients expect it: {"error": {message, type, param, code}} and a status that tells who mends.

Messages hold no traceback, no path and no address: callers' errors are written by us, faults are cut and cleaned here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import msgspec

from threefold.errors import AuthenticationError, CallerError, EngineDeadError, OverloadedError, ThreefoldError

MAX_MESSAGE_CHARS = 1000
_ADDRESS_OR_PATH = re.compile(r"0x[0-9a-fA-F]{6,}|(?:/[\w.-]+){2,}/?")
_INTERNAL = "the server hit a fault of its own; the request can be sent again"


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error, ready to be sent."""

    status: int
    """HTTP status."""
    body: bytes
    """JSON, the error object in OpenAI's envelope."""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Beside content-type and content-length."""


def reply_to(error: BaseException, overload_status: int = 503) -> ErrorReply:
    """The reply to an exception of any kind; what is not in errors.py's tree becomes a plain 500."""
    if isinstance(error, CallerError):
        headers = [(b"x-should-retry", b"false")] if error.status >= 500 else []  # OpenAI's client retries any 5xx
        if isinstance(error, AuthenticationError):
            headers.append((b"www-authenticate", b"Bearer"))
        return ErrorReply(
            error.status, error_body(str(error), error.kind, error.param, error.code or error.status), headers
        )
    if isinstance(error, OverloadedError):
        body = error_body(str(error), "overloaded_error", None, overload_status)
        return ErrorReply(overload_status, body, _retry_headers(error.retry_after_s))
    if isinstance(error, EngineDeadError):
        return ErrorReply(500, error_body("the engine is gone; the server is stopping", "server_error", None, 500))
    message = _ADDRESS_OR_PATH.sub("…", str(error)) if isinstance(error, ThreefoldError) else _INTERNAL
    return ErrorReply(500, error_body(message or _INTERNAL, "server_error", None, 500))


def error_body(message: str, kind: str, param: str | None, code: str | int | None) -> bytes:
    """OpenAI's error object as JSON."""
    sendable = message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()  # no lone surrogates
    fault = {"message": sendable, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": fault})


def _retry_headers(retry_after_s: float) -> list[tuple[bytes, bytes]]:
    seconds = max(retry_after_s, 0.001)
    return [
        (b"retry-after", b"%d" % math.ceil(seconds)),
        (b"retry-after-ms", b"%d" % math.ceil(seconds * 1000)),
    ]
