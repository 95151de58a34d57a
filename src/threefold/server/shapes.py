"""The two shapes of answers, chat and text: each makes frames of pieces and one body of whole answers.

A shape belongs to one call and remembers what its answers have shown so far. The frame of a piece is the hot path: one
struct tree, encoded once.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from threefold.engine.outputs import OutputDelta
from threefold.errors import RequestFailedError
from threefold.request import FinishReason
from threefold.server.call import Call
from threefold.server.logprobs import LogprobFormat
from threefold.server.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    CompletionLogprobs,
    Delta,
    Message,
    TextChoice,
    TextCompletion,
    Usage,
)
from threefold.step import TokenLogprobs

_encode = msgspec.json.Encoder().encode
_Metrics = dict[str, Any] | UnsetType


class Shape(Protocol):
    """How a kind of completion looks."""

    def frame(self, piece: OutputDelta, usage: Usage | UnsetType) -> bytes:
        """The server-sent event (or events) of one piece; empty when it shows nothing."""

    def usage_frame(self, usage: Usage, metrics: _Metrics) -> bytes:
        """The event that ends a stream with its usage."""

    def body(self, answers: list[OutputDelta], usage: Usage, metrics: _Metrics) -> bytes:
        """The whole response, one answer a choice."""


def _event(value: msgspec.Struct) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def _shows_something(piece: OutputDelta, usage: Usage | UnsetType) -> bool:
    is_bare = not piece.text and piece.finish_reason is None and piece.logprobs is None
    return not is_bare or usage is not UNSET


def _stop_reason(piece: OutputDelta) -> str | int | UnsetType | None:
    return UNSET if piece.finish_reason is None else piece.stop_reason


def check_not_failed(piece: OutputDelta) -> None:
    """A fault inside the engine is an error of the request, not an answer.

    Raises:
        RequestFailedError: the piece ends its answer by an error.
    """
    if piece.finish_reason is FinishReason.ERROR:
        raise RequestFailedError("the engine failed on this request; the request can be sent again")


class ChatShape:
    """`chat.completion` and its chunks."""

    def __init__(self, call: Call, logprobs: LogprobFormat) -> None:
        self._call = call
        self._logprobs = logprobs
        self._unstarted = set(range(call.num_choices))

    def frame(self, piece: OutputDelta, usage: Usage | UnsetType) -> bytes:
        """The piece's event, behind the role's event where the answer begins."""
        opening = self._opening(piece.index) if piece.index in self._unstarted else b""
        if not _shows_something(piece, usage) and not self._call.wants_token_ids:
            return opening
        choice = ChatChunkChoice(
            piece.index,
            Delta(content=piece.text),
            None if piece.logprobs is None else self._logprobs.chat(piece.logprobs),
            piece.finish_reason,
            _stop_reason(piece),
            piece.token_ids if self._call.wants_token_ids else UNSET,
        )
        return opening + _event(self._chunk([choice], usage))

    def usage_frame(self, usage: Usage, metrics: _Metrics) -> bytes:
        """A chunk without choices."""
        chunk = self._chunk([], usage)
        chunk.metrics = metrics
        return _event(chunk)

    def body(self, answers: list[OutputDelta], usage: Usage, metrics: _Metrics) -> bytes:
        """A `chat.completion`."""
        call = self._call
        prompt_logprobs = answers[0].prompt_logprobs
        return _encode(
            ChatCompletion(
                call.response_id,
                "chat.completion",
                call.created,
                call.model,
                [self._choice(answer) for answer in answers],
                usage,
                call.prompts[0].token_ids if call.wants_token_ids else UNSET,
                UNSET if prompt_logprobs is None else self._logprobs.prompt(prompt_logprobs),
                metrics,
            )
        )

    def _choice(self, answer: OutputDelta) -> ChatChoice:
        return ChatChoice(
            answer.index,
            Message(answer.text),
            None if answer.logprobs is None else self._logprobs.chat(answer.logprobs),
            answer.finish_reason or FinishReason.ABORT,
            answer.stop_reason,
            answer.token_ids if self._call.wants_token_ids else UNSET,
        )

    def _opening(self, index: int) -> bytes:
        is_first = len(self._unstarted) == self._call.num_choices
        self._unstarted.discard(index)
        chunk = self._chunk([ChatChunkChoice(index, Delta(role="assistant", content=""), None, None)], UNSET)
        if is_first and self._call.wants_token_ids:
            chunk.prompt_token_ids = self._call.prompts[0].token_ids
        return _event(chunk)

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType) -> ChatChunk:
        call = self._call
        return ChatChunk(call.response_id, "chat.completion.chunk", call.created, call.model, choices, usage)


class TextShape:
    """`text_completion`, whole or in chunks; both have the same choices.

    Args:
        call: the call.
        logprobs: how tokens are shown.
        echoes: the prompts' texts, to be put before the answers; None = no echo.
        shows_prompt_logprobs: asked for by name, so shown beside the answer.
    """

    def __init__(
        self, call: Call, logprobs: LogprobFormat, *, echoes: list[str] | None, shows_prompt_logprobs: bool
    ) -> None:
        self._call = call
        self._logprobs = logprobs
        self._echoes = echoes
        self._shows_prompt_logprobs = shows_prompt_logprobs
        self._unstarted = set(range(call.num_choices))
        self._offsets = [0] * call.num_choices

    def frame(self, piece: OutputDelta, usage: Usage | UnsetType) -> bytes:
        """The piece's event."""
        is_opening = piece.index in self._unstarted and (self._echoes is not None or self._call.wants_token_ids)
        if not (is_opening or self._call.wants_token_ids or _shows_something(piece, usage)):
            return b""
        return _event(self._completion([self._choice(piece)], usage))

    def usage_frame(self, usage: Usage, metrics: _Metrics) -> bytes:
        """A chunk without choices."""
        return _event(self._completion([], usage, metrics))

    def body(self, answers: list[OutputDelta], usage: Usage, metrics: _Metrics) -> bytes:
        """A `text_completion`."""
        return _encode(self._completion([self._choice(answer) for answer in answers], usage, metrics))

    def _choice(self, piece: OutputDelta) -> TextChoice:
        call, index = self._call, piece.index
        is_first = index in self._unstarted
        self._unstarted.discard(index)
        choice = TextChoice(index, piece.text, None, piece.finish_reason, _stop_reason(piece))
        if is_first and self._echoes is not None:
            choice.text = self._echoes[index // call.params.n] + piece.text
        if call.params.logprobs is not None:
            choice.logprobs = self._columns(piece, is_first)
        if call.wants_token_ids:
            choice.token_ids = piece.token_ids
            if is_first:
                choice.prompt_token_ids = call.prompt_of(index).token_ids
        if self._shows_prompt_logprobs and piece.prompt_logprobs is not None:
            choice.prompt_logprobs = self._logprobs.prompt(piece.prompt_logprobs)
        return choice

    def _columns(self, piece: OutputDelta, is_first: bool) -> CompletionLogprobs:
        entries: list[TokenLogprobs | int] = []
        if is_first and self._echoes is not None:
            entries += [self._call.prompt_of(piece.index).token_ids[0], *(piece.prompt_logprobs or ())]
        entries += piece.logprobs or ()
        columns, self._offsets[piece.index] = self._logprobs.completion(entries, self._offsets[piece.index])
        return columns

    def _completion(
        self, choices: list[TextChoice], usage: Usage | UnsetType, metrics: _Metrics = UNSET
    ) -> TextCompletion:
        call = self._call
        return TextCompletion(call.response_id, "text_completion", call.created, call.model, choices, usage, metrics)
