"""A server that speaks just enough HTTP, wrongly where a test asks for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from threefold.bench.client import Endpoint

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@dataclass
class SseServer:
    """Answers POSTs as `behaviour` says; request bodies are kept.

    Attributes:
        num_tokens: pieces of an answer.
        behaviour: called with the number of the request; the name of what goes wrong, or "".
        is_chunked: transfer encoding, or a body that ends with the connection.
        pages: bodies of GETs by path.
    """

    num_tokens: int = 5
    behaviour: Callable[[int], str] = lambda index: ""
    is_chunked: bool = True
    pages: dict[str, bytes] = field(default_factory=dict)
    bodies: list[dict] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    num_connections: int = 0
    max_in_flight: int = 0
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("127.0.0.1", 0))
    close: Callable[[], None] = lambda: None
    """Stop listening."""
    has_usage: bool = True
    _in_flight: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (
                        int(line.split(":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                self.heads.append(head)
                if not await self.answer(head, body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False = close the connection."""
        method, path, _ = head.split(" ", 2)
        if method == "GET" or path in ("/reset_prefix_cache", "/tokenize"):
            page = self.pages.get(path)
            status, text = ("404 Not Found", b"") if page is None else ("200 OK", page)
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            return True
        index = len(self.bodies)
        self.bodies.append(json.loads(body))
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            return await self.stream(path, self.behaviour(index), writer)
        finally:
            self._in_flight -= 1

    async def stream(self, path: str, fault: str, writer: asyncio.StreamWriter) -> bool:
        if fault == "503":
            text = json.dumps({"error": {"message": "the queue is full", "type": "overloaded"}})
            writer.write(f"HTTP/1.1 503 Busy\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            return True
        if fault == "garbage":
            writer.write(b"this is no HTTP at all\r\n\r\n")
            return False
        if fault == "silence":
            return False
        if fault == "bow out":
            self.close()
            writer.transport.abort()
            return False
        writer.write((HEAD + ("Transfer-Encoding: chunked\r\n" if self.is_chunked else "") + "\r\n").encode())
        if fault == "stall":
            await asyncio.sleep(30)
        is_chat = path.endswith("/chat/completions")
        if is_chat:
            self.send(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for position in range(self.num_tokens):
            await asyncio.sleep(0)
            if fault == "die" and position == 2:
                await writer.drain()
                writer.transport.abort()
                return False
            if fault == "error" and position == 2:
                self.send(writer, {"error": {"message": "the engine is dead", "code": 500}})
                break
            delta = {"delta": {"content": f" t{position}"}} if is_chat else {"text": f" t{position}"}
            self.send(writer, {"choices": [delta], "usage": None})
        if fault not in ("error", "cut"):
            self.send(writer, {"choices": [{"delta": {}, "finish_reason": "length"}]})
            usage = {"prompt_tokens": 7, "completion_tokens": 2 * self.num_tokens}
            usage["prompt_tokens_details"] = {"cached_tokens": 3}
            if self.has_usage:
                self.send(writer, {"choices": [], "usage": usage})
            self.send_raw(writer, b"data: [DONE]\n\n")
        if self.is_chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return self.is_chunked

    def send(self, writer: asyncio.StreamWriter, frame: dict) -> None:
        self.send_raw(writer, b"data: " + json.dumps(frame).encode() + b"\n\n")

    def send_raw(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self.is_chunked else data)


@pytest.fixture
async def sse_server() -> AsyncIterator[SseServer]:
    fake = SseServer()
    server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
    fake.endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    fake.close = server.close
    yield fake
    server.close()
