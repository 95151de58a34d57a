"""A request's body to a validated model: type, size, syntax and depth are checked before pydantic sees it."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from threefold.errors import CallerError, InvalidRequestError, RequestTooLargeError
from threefold.server.limits import BODY_TIMEOUT_S, MAX_JSON_DEPTH

MAX_ERRORS_SHOWN = 3
MAX_VALUE_CHARS = 100
MAX_MESSAGE_CHARS = 200

Model = TypeVar("Model", bound=BaseModel)


class UnsupportedMediaTypeError(CallerError):
    """The body is not said to be JSON."""

    status = 415


class SlowRequestError(CallerError):
    """The body did not arrive in time."""

    status = 408


class ClientGoneError(CallerError):
    """The client left before its request was whole; nobody reads the answer."""


async def read_object(request: Request, max_body_bytes: int) -> dict[str, Any]:
    """Read the body as one JSON object.

    Raises:
        UnsupportedMediaTypeError: the content type is not JSON, or the body is packed.
        RequestTooLargeError: more than max_body_bytes, noticed while reading.
        InvalidRequestError: not JSON, nested too deeply, or no object.
    """
    _check_content_type(request.headers.get("content-type", "application/json"))
    _check_encoding(request.headers.get("content-encoding", "identity"))
    body = await _read_bytes(request, max_body_bytes)
    if not body:
        raise InvalidRequestError("the body is empty; send a JSON object")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequestError(_too_deep()) from None
    except ValueError as error:  # msgspec's errors, and bytes that are no UTF-8
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the body must be a JSON object")
    # A body cannot be deeper than it has opening brackets, so most need no walk.
    if body.count(b"{") + body.count(b"[") > MAX_JSON_DEPTH:
        _check_depth(value)
    return value


def validate(model: type[Model], value: dict[str, Any]) -> Model:
    """The value as a model of the schema.

    Raises:
        InvalidRequestError: with the first few faults, short, and the first one's field as `param`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
    shown = [f"{_field(fault['loc'])}: {_describe(fault)}" for fault in faults[:MAX_ERRORS_SHOWN]]
    if len(faults) > MAX_ERRORS_SHOWN:
        shown.append(f"and {len(faults) - MAX_ERRORS_SHOWN} more")
    raise InvalidRequestError("; ".join(shown), param=_field(faults[0]["loc"]))


def _check_content_type(content_type: str) -> None:
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedMediaTypeError("send the body as application/json")


def _check_encoding(encoding: str) -> None:
    if encoding.strip().lower() not in ("identity", ""):
        raise UnsupportedMediaTypeError(f"send the body without content-encoding, got {encoding!r:.{MAX_VALUE_CHARS}}")


async def _read_bytes(request: Request, max_body_bytes: int) -> bytes:
    too_large = RequestTooLargeError(f"the body exceeds the server's limit of {max_body_bytes} bytes")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > max_body_bytes):
        raise too_large
    chunks = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                chunks += chunk
                if len(chunks) > max_body_bytes:
                    raise too_large
    except TimeoutError:
        raise SlowRequestError(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise ClientGoneError("the client left before its request was whole") from None
    return bytes(chunks)


def _check_depth(value: object) -> None:
    layer: list[object] = [value]
    for _ in range(MAX_JSON_DEPTH):
        layer = [
            child
            for parent in layer
            for child in (parent.values() if isinstance(parent, dict) else parent)  # type: ignore[attr-defined]
            if isinstance(child, dict | list)
        ]
        if not layer:
            return
    raise InvalidRequestError(_too_deep())


def _too_deep() -> str:
    return f"the body is nested more than {MAX_JSON_DEPTH} levels deep"


def _field(location: tuple[int | str, ...]) -> str:
    # Pydantic appends the tried branch of a union ("str", "list[str]"); the field alone is what the caller knows.
    parts = [str(part) for part in location if not (isinstance(part, str) and ("[" in part or part in _BRANCHES))]
    return ".".join(parts)[:MAX_VALUE_CHARS] or "body"


_BRANCHES = frozenset({"str", "int", "float", "bool", "dict"})


def _describe(fault: Any) -> str:
    message = str(fault["msg"])[:MAX_MESSAGE_CHARS]
    if fault["type"] == "missing":
        return "field required"
    value = fault.get("input")
    if isinstance(value, dict | list):
        return message
    return f"{message}, got {value!r:.{MAX_VALUE_CHARS}}"
