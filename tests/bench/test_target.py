import json

import pytest

from threefold.bench import target
from threefold.bench.client import Endpoint
from threefold.bench.prompt import WORDS
from threefold.bench.target_options import TargetOptions
from threefold.errors import ConfigError

MODELS = json.dumps({"data": [{"id": "served"}]}).encode()


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (None, "answers HTTP 404"),
        (b"[]", "lists no model"),
        (b'{"data": []}', "lists no model"),
        (b"{", "lists no model"),
    ],
)
async def test_servers_without_models(sse_server, page: bytes | None, said: str) -> None:
    if page is not None:
        sse_server.pages["/v1/models"] = page
    with pytest.raises(ConfigError, match=said):
        await target.find_model(sse_server.endpoint)


async def test_no_server() -> None:
    with pytest.raises(ConfigError, match=r"no server at 127.0.0.1:1 .*start one with: threefold serve"):
        await target.find_model(Endpoint("127.0.0.1", 1))


async def test_no_cache_to_reset(sse_server) -> None:
    with pytest.raises(ConfigError, match="HTTP 404 to POST /reset_prefix_cache"):
        await target.reset_prefix_cache(sse_server.endpoint)


async def test_headers_reach_the_server(sse_server) -> None:
    asked = TargetOptions(port=sse_server.endpoint.port, api_key="secret", header=("X-A=b=c",))
    endpoint = target.endpoint_of(asked)
    sse_server.pages["/v1/models"] = MODELS
    await target.find_model(endpoint)
    assert "Authorization: Bearer secret\r\n" in sse_server.heads[0]
    assert "X-A: b=c\r\n" in sse_server.heads[0]


@pytest.mark.parametrize("header", ["novalue", "=x", "a=b\r\nc: d"])
def test_headers_that_are_none(header: str) -> None:
    with pytest.raises(ConfigError, match="wants NAME=VALUE"):
        target.request_headers(TargetOptions(header=(header,)))


@pytest.mark.parametrize(
    ("asked", "address"),
    [
        (TargetOptions(), "http://127.0.0.1:8000"),
        (TargetOptions(host="::1", port=81), "http://[::1]:81"),
        (TargetOptions(url="http://there", port=81), "http://there"),
    ],
)
def test_addresses(asked: TargetOptions, address: str) -> None:
    assert asked.address == address


@pytest.mark.parametrize(
    ("page", "ratio"),
    [(b'{"count": 382}', 2.0), (b'{"count": 0}', None), (b"[]", None), (b"{", None), (None, None)],
)
async def test_tokens_of_a_word(sse_server, page: bytes | None, ratio: float | None) -> None:
    if page is not None:
        sse_server.pages["/tokenize"] = page
    found = await target.tokens_per_word(sse_server.endpoint, "m")
    assert found == (pytest.approx(382 / len(WORDS)) if ratio else None)
