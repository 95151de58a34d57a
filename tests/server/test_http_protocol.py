"""Raw bytes on a real socket: what no HTTP library would send."""

from __future__ import annotations

import json
import socket

import pytest

LIMIT = 4096


@pytest.fixture
def port(client, serve_live):
    with serve_live(client, max_header_bytes=LIMIT) as live:
        yield live.port


def talk(port, *parts):
    """Send parts until the server answers or closes; returns all it said."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        said = b""
        try:
            while chunk := connection.recv(65536):
                said += chunk
        except ConnectionResetError:
            pass
        return said


@pytest.mark.parametrize(
    "parts",
    [
        [b"GET / HTTP/1.1\r\nX: ", *[b"a" * 1024] * 300],  # one header without end
        [b"GET / HTTP/1.1\r\n", *[b"X: %b\r\n" % (b"a" * 100)] * 100, b"\r\n"],
        [b"GET / HTTP/1.1\r\n", *[b"X: a\r\n"] * 200, b"\r\n"],
        [b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n"],
        [b"GET /", *[b"a" * 1024] * 300],
        [b"GET / HTTP/1.1\r\n", *[b"a" * 1024] * 300],  # a header's name without end
    ],
)
def test_a_head_over_the_limit_is_431_and_the_connection_ends(port, parts):
    said = talk(port, *parts)
    assert said == b"" or said.startswith(b"HTTP/1.1 431 "), said[:100]
    if said:
        assert json.loads(said.split(b"\r\n\r\n", 1)[1])["error"]["code"] == 431


def test_endless_trailers_and_chunk_extensions_end(port):
    head = b"POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for tail in (b"0\r\nX: ", b"1;x="):
        said = talk(port, head, tail, *[b"a" * 1024] * 1000)
        assert b"200 OK" not in said


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 10 + b"}{\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400_in_our_form(port, garbage):
    said = talk(port, garbage)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert json.loads(said.split(b"\r\n\r\n", 1)[1])["error"]["type"] == "invalid_request_error"


def test_large_bodies_are_no_large_heads_and_connections_are_kept(port):
    body = json.dumps({"prompt": "x" * 200_000}).encode()
    request = (
        b"POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    last = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
    said = talk(port, request, request, last)
    assert said.count(b"HTTP/1.1 200 OK") == 3


def test_contradicting_lengths_are_refused(port):
    body = b'{"prompt": "a"}'
    for lengths in (
        b"Content-Length: 15\r\nContent-Length: 16\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: x\r\n",
    ):
        said = talk(port, b"POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n" + lengths + b"\r\n" + body)
        assert said.startswith(b"HTTP/1.1 400 ")


def test_a_body_over_the_limit_is_refused_before_it_has_come(client, serve_live):
    with serve_live(client, max_body_bytes=1000) as live:
        head = b"POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n"
        said = talk(live.port, head + b"Content-Length: 1000000000\r\nConnection: close\r\n\r\n{")
        assert said.startswith(b"HTTP/1.1 413 ")
        chunks = [b"3e8\r\n" + b" " * 1000 + b"\r\n"] * 1000
        said = talk(live.port, head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n", *chunks)
        assert said == b"" or said.startswith(b"HTTP/1.1 413 ")
