"""A fake engine client, in process, and three ways to reach the server in front of it: ASGI, a real socket, the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn

from threefold.config import ServerConfig
from threefold.engine.outputs import EngineInfo, OutputDelta
from threefold.errors import (
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
)
from threefold.metrics import EngineStats
from threefold.request import FinishReason, SamplingParams
from threefold.server.app import create_app
from threefold.server.http_protocol import bounded_protocol
from threefold.step import TokenLogprobs

MODEL = "fake-model"
EOS = 256
TEMPLATE = (
    "{%- for message in messages -%}<{{ message.role }}>{{ message.content }}\n{% endfor -%}"
    "{%- if add_generation_prompt -%}<assistant>{%- endif -%}"
)


class ByteTokenizer:
    """One id a byte, and an end of sequence."""

    vocab_size = 257
    special_ids = frozenset({EOS})
    eos_token_ids = (EOS,)
    bos_token_id = None
    is_byte_level = True
    byte_token_ids: frozenset[int] = frozenset()

    def __init__(self, chat_template: str | None = TEMPLATE) -> None:
        self.chat_template = chat_template
        self.special_tokens = {"eos_token": "<eos>"}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text = bytes(i for i in ids if i < 256).decode("utf-8", "replace")
        return text + ("" if skip_special_tokens else "<eos>" * sum(i == EOS for i in ids))

    def id_to_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


class FakeClient:
    """Answers "abcdefgh…" token by token; knobs for everything that can go wrong."""

    def __init__(self, chat_template: str | None = TEMPLATE, **info: Any) -> None:
        facts: dict[str, Any] = {
            "model": MODEL,
            "served_model_names": (MODEL, "alias"),
            "max_model_len": 4096,
            "vocab_size": 257,
            "num_blocks": 100,
            "notes": ("num_blocks 100: a fake has no memory",),
        }
        self.info = EngineInfo(**(facts | info))
        self.tokenizer = ByteTokenizer(chat_template)
        self.asked: list[SimpleNamespace] = []
        self.num_open = 0
        self.num_closed_early = 0
        self.delay_s = 0.0
        self.fault_after: int | None = None  # tokens, then self.fault
        self.fault: Exception = RequestFailedError("a fault at /usr/lib/python/engine.py line 7, object 0x7f0011223344")
        self.last_reason = FinishReason.LENGTH
        self.is_full = False
        self.is_alive = True
        self.is_drained = False
        self.figures = EngineStats(num_blocks=100, num_held_blocks=25, num_running=2, num_waiting=1)

    async def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[OutputDelta]:
        self.asked.append(
            SimpleNamespace(
                ids=prompt_token_ids, params=params, request_id=request_id, priority=priority, salt=cache_salt
            )
        )
        self._admit(prompt_token_ids, params)
        self.num_open += 1
        is_over = False
        try:
            room = self.info.max_model_len - len(prompt_token_ids)
            num_tokens = min(params.max_tokens or room, room)
            for step in range(num_tokens):
                for index in range(params.n):
                    if self.fault_after is not None and step >= self.fault_after:
                        raise self.fault
                    yield self._piece(prompt_token_ids, params, index, step, is_last=step == num_tokens - 1)
                await asyncio.sleep(self.delay_s)
            is_over = True
        finally:
            self.num_open -= 1
            self.num_closed_early += not is_over

    def _admit(self, ids: list[int], params: SamplingParams) -> None:
        if not self.is_alive:
            raise EngineDeadError("gone")
        if self.is_full:
            raise OverloadedError("the queue is full", retry_after_s=1.5)
        if len(ids) >= self.info.max_model_len:
            raise ContextLengthError(f"the prompt has {len(ids)} tokens, more than fit", param="prompt")
        if not all(0 <= i < self.info.vocab_size for i in ids):
            raise InvalidRequestError("outside the vocabulary", param="prompt")
        params.check_vocabulary(self.info.vocab_size)

    def _piece(self, ids: list[int], params: SamplingParams, index: int, step: int, *, is_last: bool) -> OutputDelta:
        token_id = ord("a") + (step + index) % 26
        return OutputDelta(
            index=index,
            text=chr(token_id),
            token_ids=[token_id],
            logprobs=None if params.logprobs is None else [_logprobs(token_id, params.logprobs)],
            prompt_logprobs=[_logprobs(i, params.prompt_logprobs) for i in ids[1:]]
            if params.prompt_logprobs is not None and step == 0
            else None,
            finish_reason=self.last_reason if is_last else None,
            num_cached_tokens=4 if step == 0 else 0,
            num_drafted=2,
            num_accepted=1,
            queue_s=0.001 if step == 0 else None,
        )

    async def stats(self) -> EngineStats:
        if not self.is_alive:
            raise EngineDeadError("gone")
        return self.figures

    async def reset_prefix_cache(self) -> bool:
        return True

    async def drain(self, timeout_s: float) -> int:
        self.is_drained = True
        return 0

    async def close(self) -> None:
        self.is_alive = False


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    others = tuple((ord("A") + place, -1.0 - place) for place in range(max(num_top - 1, 0)))
    top = ((token_id, -0.5), *others) if num_top else ()
    return TokenLogprobs(token_id, -0.5, 1, top)


@pytest.fixture
def make_client() -> Callable[..., FakeClient]:
    """The fake's class, for tests that need one of their own."""
    return FakeClient


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@dataclass
class Served:
    """A server behind the in-process ASGI transport."""

    client: FakeClient
    http: httpx.AsyncClient
    app: Any


Serve = Callable[..., contextlib.AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(client: FakeClient) -> Serve:
    """Serves the fake in process: `async with serve(api_keys=("k",)) as served`."""

    @contextlib.asynccontextmanager
    async def _serve(engine: FakeClient | None = None, **config: Any) -> AsyncIterator[Served]:
        engine = engine or client
        app = create_app(engine, ServerConfig(**config))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            try:
                yield Served(engine, http, app)
            finally:
                if (renderer := app.state.server.renderer) is not None:
                    await renderer.close()

    return _serve


@dataclass
class Live:
    """A server on a real socket, in a thread of its own."""

    client: FakeClient
    port: int
    app: Any
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _live(client: FakeClient, **config: Any) -> Iterator[Live]:
    settings = ServerConfig(**config)
    app = create_app(client, settings)
    listener = socket.create_server(("127.0.0.1", 0))
    server = _QuietServer(
        uvicorn.Config(
            app,
            http=bounded_protocol(settings.max_header_bytes),
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    try:
        yield Live(client, listener.getsockname()[1], app)
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@pytest.fixture
def live(client: FakeClient) -> Iterator[Live]:
    """The fake behind a real socket."""
    with _live(client) as server:
        yield server


@pytest.fixture
def serve_live() -> Callable[..., contextlib.AbstractContextManager[Live]]:
    """The same with a configuration: `with serve_live(client, api_keys=("k",)) as live`."""
    return _live


@pytest.fixture(scope="module")
def shared_live() -> Iterator[Live]:
    """One server on a real socket for a whole module, for tests that only ask."""
    with _live(FakeClient()) as server:
        yield server
