"""The outermost layer: names the request and checks its key. Decides on what arrived (`scope`), not on rebuilt URLs.

With keys configured everything needs one except the paths in OPEN_PATHS, compared exactly: what is not known to be open
is closed, so no spelling of a path opens a door that routing then walks through.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threefold.errors import AuthenticationError
from threefold.server.error_responses import reply_to
from threefold.server.limits import MAX_REQUEST_ID_CHARS
from threefold.server.stream import send_reply

OPEN_PATHS = frozenset({"/health"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % MAX_REQUEST_ID_CHARS)


class Guard:
    """ASGI middleware.

    Args:
        app: what it guards.
        api_keys: accepted bearer keys; empty = all may pass.
        root_path: prefix behind a proxy, part of `scope["path"]`.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], root_path: str = "") -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in api_keys]
        self._open_paths = OPEN_PATHS | {root_path + path for path in OPEN_PATHS}  # proxies strip the prefix, or not

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        request_id = _request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        if self._digests and scope["path"] not in self._open_paths and not self._has_key(headers):
            error = AuthenticationError("a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")
            await send_reply(send_named, reply_to(error))
            return
        # HEAD is GET without its body, which whoever writes the answer leaves out.
        is_head = scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send_named)

    def _has_key(self, headers: list[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        digest = _digest(key.strip())
        # Every key is compared, so that time tells neither which one matched nor how much of it.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _request_id(headers: list[tuple[bytes, bytes]]) -> bytes:
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex.encode()
