"""The answers that run, seen from the text edge: what a step brought goes to the streams of those who asked.

Knows streams and answers; nothing about processes and how requests are made. One answer's fault ends its request alone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from threefold.engine.answer import Answer
from threefold.engine.outputs import OutputDelta
from threefold.engine.stream import AnswerStream
from threefold.engine.wire import StepOutput
from threefold.errors import RequestFailedError, ThreefoldError
from threefold.request import FinishReason, SamplingParams
from threefold.step import TokenDelta
from threefold.text.detokenizer import TokenDecoder

log = logging.getLogger(__name__)


class _Live(NamedTuple):
    """An answer that runs. Its stream belongs to the reader: when the reader loses it, the request ends."""

    answer: Answer
    stream: weakref.ref[AnswerStream]

    def put(self, output: OutputDelta) -> None:
        stream = self.stream()
        if stream is not None:
            stream.put(output)


class LiveAnswers:
    """Answers by the engine's request id.

    Attributes:
        is_idle: set while there are none.
    """

    def __init__(self, abort_in_engine: Callable[[list[int]], None], on_end: Callable[[], None]) -> None:
        """Without answers.

        Args:
            abort_in_engine: tells the engine whom nobody waits for any more.
            on_end: called when the engine ended an answer.
        """
        self.is_idle = asyncio.Event()
        self.is_idle.set()
        self._abort_in_engine = abort_in_engine
        self._on_end = on_end
        self._live: dict[int, _Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    def open(
        self, request_id: str, answer_ids: list[int], tokenizer: TokenDecoder, params: SamplingParams
    ) -> AnswerStream:
        """A stream of the answers that the engine gives under these ids."""
        stream = AnswerStream(request_id, answer_ids, partial(self.abort, answer_ids))
        for index, answer_id in enumerate(answer_ids):
            self._live[answer_id] = _Live(Answer(index, tokenizer, params), weakref.ref(stream))
        self.is_idle.clear()
        return stream

    def abort(self, answer_ids: Iterable[int]) -> None:
        """Forget answers, here and in the engine; what it still sends for them is dropped."""
        running = [answer_id for answer_id in answer_ids if self._forget(answer_id)]
        if running:
            self._abort_in_engine(running)

    def abort_all(self) -> int:
        """End every answer with what it has; returns how many there were."""
        for running in self._live.values():
            running.put(running.answer.end(FinishReason.ABORT))
        num_aborted = len(self._live)
        self.abort(list(self._live))
        return num_aborted

    def fail(self, answer_id: int, error: ThreefoldError) -> None:
        """End the whole request of an answer with an error."""
        running = self._live.get(answer_id)
        if running is None:
            return
        stream = running.stream()
        self.abort([answer_id] if stream is None else stream.answer_ids)
        if stream is not None:
            stream.fail(error)

    def fail_all(self, make_error: Callable[[], ThreefoldError]) -> None:
        """End every request with an error of its own."""
        for answer_id in list(self._live):
            self.fail(answer_id, make_error())

    def on_step(self, step: StepOutput) -> None:
        """Hand on what a step brought."""
        num_drafted = step.num_drafted or itertools.repeat(0)
        num_accepted = step.num_accepted or itertools.repeat(0)
        rows = zip(step.request_ids, step.token_ids, num_drafted, num_accepted)  # noqa: B905 - repeat() has no end
        for answer_id, token_ids, drafted, accepted in rows:
            running = self._live.get(answer_id)
            if running is None:
                continue
            try:
                output = running.answer.push(token_ids, drafted, accepted)
            except Exception as error:  # noqa: BLE001 - one request's fault ends that request
                self._on_text_fault(answer_id, error)
                continue
            running.put(output)
            if output.finish_reason is not None:  # by a stop string, of which the engine knows nothing
                self.abort([answer_id])
        for delta in step.deltas:
            self._on_delta(delta)

    def _on_delta(self, delta: TokenDelta) -> None:
        running = self._live.get(delta.request_id)
        if running is None:
            return
        if delta.error is not None:
            self.fail(delta.request_id, RequestFailedError(delta.error))
            return
        try:
            output = running.answer.push_delta(delta)
        except Exception as error:  # noqa: BLE001 - one request's fault ends that request
            self._on_text_fault(delta.request_id, error)
            return
        running.put(output)
        if delta.finish_reason is not None:
            self._forget(delta.request_id)
            self._on_end()
        elif output.finish_reason is not None:
            self.abort([delta.request_id])

    def _on_text_fault(self, answer_id: int, error: Exception) -> None:
        log.error("the text of a request could not be made", exc_info=error)
        self.fail(answer_id, RequestFailedError(f"{type(error).__name__}: {error}"))

    def _forget(self, answer_id: int) -> bool:
        was_live = self._live.pop(answer_id, None) is not None
        if not self._live:
            self.is_idle.set()
        return was_live
