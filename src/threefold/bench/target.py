"""What is asked of a server before a load: its model, its tokenizer's view of made-up words, a forgotten cache."""

from __future__ import annotations

import msgspec

from threefold.bench.client import Body, Connection, Endpoint, TransferError, get
from threefold.bench.prompt import WORDS
from threefold.bench.target_options import TargetOptions
from threefold.errors import ConfigError


def endpoint_of(target: TargetOptions) -> Endpoint:
    """The server's address, with the headers of every request.

    Raises:
        ConfigError: the address or a header is malformed.
    """
    return Endpoint.from_url(target.address, request_headers(target))


def request_headers(target: TargetOptions) -> tuple[tuple[str, str], ...]:
    """The key and the further headers of every request.

    Raises:
        ConfigError: a header is not NAME=VALUE.
    """
    headers = [("Authorization", f"Bearer {target.api_key}")] if target.api_key else []
    for header in target.header:
        name, separator, value = header.partition("=")
        if not separator or not name or any(character in header for character in "\r\n"):
            raise ConfigError(f"--header {header}: wants NAME=VALUE")
        headers.append((name, value))
    return tuple(headers)


async def find_model(endpoint: Endpoint) -> str:
    """The first model that the server lists.

    Raises:
        ConfigError: nothing answers, or not with a list of models.
    """
    where = f"{endpoint.host}:{endpoint.port}"
    try:
        status, body = await get(endpoint, "/v1/models")
    except TransferError as error:
        raise ConfigError(f"no server at {where} ({error}); start one with: threefold serve") from None
    if status != 200:
        hint = "give --api-key" if status == 401 else "give the model's name: --model NAME"
        raise ConfigError(f"{where} answers HTTP {status} to GET /v1/models; {hint}")
    try:
        name = msgspec.json.decode(body)["data"][0]["id"]
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise ConfigError(f"{where} lists no model; give its name: --model NAME") from None
    return str(name)


async def tokens_per_word(endpoint: Endpoint, model: str) -> float | None:
    """Tokens that the server's tokenizer makes of a made-up word; None when the server does not tell."""
    body = msgspec.json.encode({"model": model, "prompt": " ".join(WORDS), "add_special_tokens": False})
    try:
        status, answer = await _post(endpoint, "/tokenize", body)
        count = msgspec.json.decode(answer)["count"] if status == 200 else None
    except (TransferError, msgspec.DecodeError, KeyError, TypeError):
        return None
    return count / len(WORDS) if isinstance(count, int) and count > 0 else None


async def reset_prefix_cache(endpoint: Endpoint) -> None:
    """Ask the server to forget cached prefixes.

    Raises:
        ConfigError: it does not.
    """
    try:
        status, _ = await _post(endpoint, "/reset_prefix_cache", b"{}")
    except TransferError as error:
        raise ConfigError(f"--reset-prefix-cache: {error}") from None
    if status != 200:
        raise ConfigError(f"--reset-prefix-cache: the server answers HTTP {status} to POST /reset_prefix_cache")


async def _post(endpoint: Endpoint, path: str, content: bytes) -> tuple[int, bytes]:
    connection, body = Connection(endpoint), Body()
    try:
        status = await connection.exchange(endpoint.request("POST", path, content), body)
    finally:
        connection.close()
    return status, bytes(body.data)
