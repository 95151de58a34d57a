import asyncio

import pytest

from threefold.bench.client import Body, Connection, Endpoint, TransferError, get
from threefold.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, False, "")),
        ("http://127.0.0.1:8000/", ("127.0.0.1", 8000, False, "")),
        ("http://host/v1", ("host", 80, False, "")),
        ("https://host/prefix/v1/", ("host", 443, True, "/prefix")),
        ("host:9", ("host", 9, False, "")),
        ("http://[::1]:8000", ("::1", 8000, False, "")),
    ],
)
def test_addresses(url: str, wanted: tuple[str, int, bool, str]) -> None:
    endpoint = Endpoint.from_url(url)
    assert (endpoint.host, endpoint.port, endpoint.is_tls, endpoint.base_path) == wanted


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:port", "http://host:99999"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="wants an address such as"):
        Endpoint.from_url(url)


def test_the_bytes_of_a_request() -> None:
    endpoint = Endpoint.from_url("http://user:word@[::1]:8000/p", (("X-Y", "z"),))
    data = endpoint.request("POST", "/v1/models", b"{}").decode()
    assert data.startswith("POST /p/v1/models HTTP/1.1\r\nHost: [::1]:8000\r\n")
    assert "X-Y: z\r\n" in data
    assert "Authorization: Basic dXNlcjp3b3Jk\r\n" in data
    assert data.endswith("Content-Length: 2\r\n\r\n{}")
    assert "Content-Length" not in endpoint.request("GET", "/").decode()


async def test_get(sse_server) -> None:
    sse_server.pages["/v1/models"] = b"hello"
    assert await get(sse_server.endpoint, "/v1/models") == (200, b"hello")
    assert await get(sse_server.endpoint, "/missing") == (404, b"")


async def test_a_connection_serves_many_exchanges(sse_server) -> None:
    sse_server.pages["/a"] = b"a"
    connection = Connection(sse_server.endpoint)
    for _ in range(3):
        body = Body()
        assert await connection.exchange(sse_server.endpoint.request("GET", "/a"), body) == 200
        assert body.data == b"a"
    assert sse_server.num_connections == 1
    connection.close()


async def test_a_closed_connection_is_opened_again(sse_server) -> None:
    sse_server.pages["/a"] = b"a"
    connection = Connection(sse_server.endpoint)
    await connection.exchange(sse_server.endpoint.request("GET", "/a"), Body())
    connection.close()
    assert await connection.exchange(sse_server.endpoint.request("GET", "/a"), Body()) == 200
    assert sse_server.num_connections == 2
    connection.close()


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 1000])
async def test_responses_cut_anywhere(piece_bytes: int) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(response), piece_bytes):
            writer.write(response[start : start + piece_bytes])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    assert await get(endpoint, "/") == (200, b"abcdefg")
    server.close()


async def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    num_connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb")  # an answer to nothing
        await reader.read()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    connection = Connection(endpoint)
    for _ in range(2):
        body = Body()
        assert await connection.exchange(endpoint.request("GET", "/"), body) == 200
        assert body.data == b"a"
        await asyncio.sleep(0.1)
    assert num_connections == 2
    connection.close()
    server.close()


async def test_nobody_listens() -> None:
    with pytest.raises(TransferError, match="refused"):
        await Connection(Endpoint("127.0.0.1", 1)).exchange(b"", Body())
