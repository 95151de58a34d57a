"""What the reader of a request holds: its answers' pieces, as they come, never more than one waiting an answer.

Pieces for a slow reader are merged, so a reader who stops reading costs the text of its answers and no queue. Closing
the stream, cancelling its reader or losing it ends the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from threefold.engine.answer import merge
from threefold.engine.outputs import OutputDelta
from threefold.errors import ThreefoldError


class AnswerStream:
    """Async iterator over the pieces of all answers of one request, interleaved.

    Attributes:
        request_id: the caller's name for the request, for logs.
        answer_ids: the engine's ids of its answers.
    """

    def __init__(self, request_id: str, answer_ids: list[int], on_close: Callable[[], None]) -> None:
        """Made by the client; `on_close` is called once if the stream is left before its end."""
        self.request_id = request_id
        self.answer_ids = answer_ids
        self._num_open = len(answer_ids)
        self._on_close = on_close
        self._pending: dict[int, OutputDelta] = {}
        self._error: ThreefoldError | None = None
        self._wakeup: asyncio.Future[None] | None = None

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> OutputDelta:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._num_open == 0:
                raise StopAsyncIteration
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            except asyncio.CancelledError:
                self.close()
                raise
            finally:
                self._wakeup = None
        return self._pending.pop(next(iter(self._pending)))

    async def aclose(self) -> None:
        """End the request if it still runs."""
        self.close()

    def close(self) -> None:
        """End the request if it still runs; what was not read is dropped."""
        if self._num_open and self._error is None:
            self._num_open = 0
            self._on_close()
        self._pending.clear()
        self._wake()

    def __del__(self) -> None:
        if self._num_open and self._error is None:
            self._on_close()

    def put(self, output: OutputDelta) -> None:
        """A piece for the reader; called by the client."""
        waiting = self._pending.get(output.index)
        if waiting is None:
            self._pending[output.index] = output
        else:
            merge(waiting, output)
        if output.finish_reason is not None:
            self._num_open -= 1
        self._wake()

    def fail(self, error: ThreefoldError) -> None:
        """The reader gets this error after the pieces that wait; called by the client."""
        if self._num_open and self._error is None:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
