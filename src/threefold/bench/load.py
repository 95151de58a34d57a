"""Closed-loop load: so many streams at once, each sending its next prompt when its answer is over.

Measures, judges nothing; measure.py makes figures of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from threefold.bench.client import Connection, Endpoint, TransferError
from threefold.bench.outcome import Outcome
from threefold.bench.sse import StreamReader, error_message
from threefold.bench.workload import Prompt

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What every request of a load has in common."""

    api: str = "chat"
    """chat or completions."""
    model: str = ""
    """The model's name at the server."""
    max_tokens: int = 256
    """Tokens wanted, unless the prompt says."""
    temperature: float = 0.0
    """0 = greedy."""
    ignore_eos: bool = False
    """Go on to max_tokens whatever the model says."""
    seed: int = 0
    """Request i samples with seed + i when the temperature is not 0."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body; they win."""

    def body(self, prompt: Prompt, index: int) -> bytes:
        """One request's body."""
        message: dict[str, Any] = {"model": self.model}
        if self.api == "chat":
            message["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            message["prompt"] = prompt.text
        message["max_tokens"] = prompt.max_tokens or self.max_tokens
        message["temperature"] = self.temperature
        message["stream"] = True
        message["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            message["ignore_eos"] = True
        if self.temperature > 0:
            message["seed"] = self.seed + index
        return msgspec.json.encode({**message, **self.extra})


class Load:
    """A closed loop in progress; `outcomes` and `running` may be read at any time.

    Attributes:
        outcomes: finished requests, failed ones among them, in the order of their end.
        running: requests in flight.
        num_sent: requests sent so far.
        is_stopped: True once `stop` was called: what was in flight then is in no outcome.
        start_s: when the first request was sent.
        duration_s: from then to the end of the last one.
    """

    def __init__(self, endpoint: Endpoint, form: RequestForm, *, concurrency: int, timeout_s: float = 600.0) -> None:
        self.endpoint = endpoint
        self.form = form
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self.outcomes: list[Outcome] = []
        self.running: set[int] = set()
        self.num_sent = 0
        self.is_stopped = False
        self.start_s = 0.0
        self.duration_s = 0.0
        self._streams: list[asyncio.Task[None]] = []

    async def run(self, prompts: Sequence[Prompt]) -> None:
        """Send every prompt and wait for every answer, or until `stop`."""
        bodies = [self.form.body(prompt, index) for index, prompt in enumerate(prompts)]
        requests = [self.endpoint.request("POST", PATHS[self.form.api], body) for body in bodies]
        waiting = iter(range(len(prompts)))
        self.start_s = time.perf_counter()
        self._streams = [
            asyncio.create_task(self._stream(waiting, prompts, requests))
            for _ in range(min(self.concurrency, len(prompts)))
        ]
        endings = await asyncio.gather(*self._streams, return_exceptions=True)
        self.duration_s = time.perf_counter() - self.start_s
        for ending in endings:
            if ending is not None and not (self.is_stopped and isinstance(ending, asyncio.CancelledError)):
                raise ending

    def stop(self) -> None:
        """Give up what is in flight and send nothing more; finished requests stay measured."""
        self.is_stopped = True
        for stream in self._streams:
            stream.cancel()

    async def _stream(self, waiting: Any, prompts: Sequence[Prompt], requests: Sequence[bytes]) -> None:
        connection = Connection(self.endpoint)
        try:
            for index in waiting:  # shared by all streams: each index is taken once
                self.num_sent += 1
                self.running.add(index)
                outcome = await self._one(connection, requests[index])
                self.running.discard(index)
                outcome.category = prompts[index].category
                self.outcomes.append(outcome)
        finally:
            connection.close()

    async def _one(self, connection: Connection, request: bytes) -> Outcome:
        outcome = Outcome(start_s=time.perf_counter())
        reader = StreamReader(outcome)
        try:
            async with asyncio.timeout(self.timeout_s):
                status = await connection.exchange(request, reader)
            if status == 200:
                reader.finish()
            else:
                outcome.error = f"HTTP {status}: {_message(connection.error_text)}"
        except TimeoutError:
            outcome.error = f"timed out after {self.timeout_s:g} s"
        except TransferError as error:
            outcome.error = str(error)
        outcome.end_s = time.perf_counter()
        return outcome


def _message(body: str) -> str:
    """The message of an error body in OpenAI's form, or its first words."""
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return error_message(body)
    return error_message(parsed["error"] if isinstance(parsed, dict) and "error" in parsed else parsed)
