"""A load in progress, closed or open. Measures, judges nothing; measure.py makes figures of it.

Closed loop: so many streams at once, each sending its next prompt when its answer is over. Open loop: every request has
a moment, and is sent then whether or not the answers before it have come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import msgspec

from threefold.bench.client import Connection, Endpoint, TransferError, UnreachableError, why_unreachable
from threefold.bench.outcome import Outcome
from threefold.bench.prompt import Prompt
from threefold.bench.request_form import RequestForm
from threefold.bench.sse import StreamReader, error_message

# A server that restarts behind its port is given this long before it counts as gone.
_GONE_AFTER_S = 0.5
_PREPARED_BYTES = 256 * 2**20
"""Requests made ready before the clock starts; those beyond are made when they are sent."""


class Load:
    """A load in progress; `outcomes` and `running` may be read at any time.

    Attributes:
        outcomes: finished requests, failed ones among them, in the order of their end.
        running: requests in flight and what came of them so far; not empty after `run` only when it was stopped.
        num_sent: requests sent so far.
        is_stopped: True once `stop` was called: what was in flight then is in no outcome.
        gone: why nothing more was sent, when the server went away; "" = it did not.
        max_lag_s: how late the client itself sent a request of an open loop, at most.
        start_s: when the load began.
        duration_s: from then to the end of the last request.
    """

    def __init__(
        self, endpoint: Endpoint, form: RequestForm, *, concurrency: int | None, timeout_s: float = 600.0
    ) -> None:
        """Take the load's shape; `concurrency` None = no cap, for an open loop only."""
        self.endpoint = endpoint
        self.form = form
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self.outcomes: list[Outcome] = []
        self.running: dict[int, Outcome] = {}
        self.num_sent = 0
        self.is_stopped = False
        self.gone = ""
        self.max_lag_s = 0.0
        self.start_s = 0.0
        self.duration_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[Connection] = []
        self._prepared: list[bytes] = []

    async def run(self, prompts: Sequence[Prompt], at_s: Sequence[float] | None = None) -> None:
        """Send every prompt and wait for every answer, or until `stop`.

        Args:
            prompts: what is sent, in order.
            at_s: when each is sent, ascending, from now; None = a closed loop.
        """
        self._prepare(prompts)
        self.start_s = time.perf_counter()
        if at_s is None:
            waiting = iter(enumerate(prompts))
            num_streams = min(self.concurrency or len(prompts), len(prompts))
            self._tasks = [asyncio.create_task(self._stream(waiting)) for _ in range(num_streams)]
        else:
            self._tasks = [asyncio.create_task(self._dispatch(prompts, at_s))]
        endings = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.duration_s = time.perf_counter() - self.start_s
        for connection in self._idle:
            connection.close()
        for ending in endings:
            if ending is not None and not (self.is_stopped and isinstance(ending, asyncio.CancelledError)):
                raise ending

    def stop(self) -> None:
        """Give up what is in flight and send nothing more; finished requests stay measured."""
        self.is_stopped = True
        for task in self._tasks:
            task.cancel()

    def _prepare(self, prompts: Sequence[Prompt]) -> None:
        budget = _PREPARED_BYTES
        for index, prompt in enumerate(prompts):
            if budget < 0:
                break
            self._prepared.append(self._request(index, prompt))
            budget -= len(self._prepared[-1])

    def _request(self, index: int, prompt: Prompt) -> bytes:
        return self.endpoint.request("POST", self.form.path(prompt), self.form.body(prompt, index))

    async def _stream(self, waiting: Iterator[tuple[int, Prompt]]) -> None:
        for index, prompt in waiting:  # shared by all streams: each prompt is taken once
            await self._answer(index, prompt, None)
            if self.is_stopped:
                return

    async def _dispatch(self, prompts: Sequence[Prompt], at_s: Sequence[float]) -> None:
        gate = asyncio.Semaphore(self.concurrency or len(prompts))

        async def arrive(index: int, prompt: Prompt, due_s: float) -> None:
            async with gate:
                await self._answer(index, prompt, due_s)

        async with asyncio.TaskGroup() as group:
            for index, (prompt, moment) in enumerate(zip(prompts, at_s, strict=True)):
                due_s = self.start_s + moment
                await asyncio.sleep(max(due_s - time.perf_counter(), 0))
                self.max_lag_s = max(self.max_lag_s, time.perf_counter() - due_s)
                group.create_task(arrive(index, prompt, due_s))

    async def _answer(self, index: int, prompt: Prompt, due_s: float | None) -> None:
        """Send one prompt and take its answer in, over a connection that nobody uses now."""
        connection = self._idle.pop() if self._idle else Connection(self.endpoint)
        request = self._prepared[index] if index < len(self._prepared) else self._request(index, prompt)
        outcome = Outcome(start_s=time.perf_counter(), category=prompt.category, due_s=due_s)
        self.num_sent += 1
        self.running[index] = outcome
        try:
            is_unreachable = await self._exchange(connection, request, outcome)
        except BaseException:
            connection.close()
            raise
        outcome.end_s = time.perf_counter()
        del self.running[index]
        self.outcomes.append(outcome)
        self._idle.append(connection)
        if is_unreachable:
            await self._end_if_gone()

    async def _exchange(self, connection: Connection, request: bytes, outcome: Outcome) -> bool:
        """Fill the outcome; True when nobody listens there."""
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
            return isinstance(error, UnreachableError)
        return False

    async def _end_if_gone(self) -> None:
        """Stop the load when the server cannot be reached a moment later either."""
        await asyncio.sleep(_GONE_AFTER_S)
        reason = await why_unreachable(self.endpoint)
        if reason and not self.is_stopped:
            self.gone = reason
            self.stop()


def _message(body: str) -> str:
    """The message of an error body in OpenAI's form, or its first words."""
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return error_message(body)
    return error_message(parsed["error"] if isinstance(parsed, dict) and "error" in parsed else parsed)
