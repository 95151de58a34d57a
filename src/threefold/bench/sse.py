"""Server-sent events of an OpenAI-compatible stream to one Outcome. Knows frames, not sockets.

A frame is decoded into four small structs; nothing else of it is kept. The text itself is dropped: a benchmark counts.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from threefold.bench.outcome import Outcome


class _Delta(msgspec.Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Frame(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Frame).decode


class StreamReader:
    """A sink that times the frames of one streamed answer."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.is_done = False
        """True after `data: [DONE]`."""
        self._pending = b""
        self._choice_times_s: list[float] = []
        """When pieces without visible output came: used when no piece shows any (only special tokens, say)."""

    def feed(self, data: bytes) -> None:
        """Take bytes cut anywhere; whole frames are timed by when their last byte came."""
        now = time.perf_counter()
        if self._pending:
            data = self._pending + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *frames, self._pending = data.split(b"\n\n")
        for frame in frames:
            self._take_frame(frame, now)

    def finish(self) -> None:
        """The body is over: settle what the frames left open."""
        if self._pending.strip():
            self._take_frame(self._pending, time.perf_counter())
        outcome = self.outcome
        if not outcome.chunk_times_s and outcome.output_tokens:
            outcome.chunk_times_s = self._choice_times_s
        if not outcome.is_counted:
            outcome.output_tokens = len(outcome.chunk_times_s)
        if not outcome.error and not self.is_done and not outcome.finish_reason:
            outcome.error = "the stream ended before the answer did"
        if not outcome.error and not outcome.chunk_times_s:
            outcome.error = "the answer holds no output"

    def _take_frame(self, frame: bytes, now: float) -> None:
        if frame.startswith(b"data: "):
            payload = frame[6:]
        else:  # rarer forms: comments, event names, no space, several lines
            lines = [line[5:].lstrip() for line in frame.split(b"\n") if line.startswith(b"data:")]
            payload = b"\n".join(lines)
        if payload[:1] == b"{":
            self._take_payload(payload, now)
        elif payload.strip() == b"[DONE]":
            self.is_done = True

    def _take_payload(self, payload: bytes, now: float) -> None:
        outcome = self.outcome
        try:
            parsed = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            outcome.error = outcome.error or f"a frame is no chunk of a completion: {error}"
            return
        if parsed.error is not None:
            outcome.error = outcome.error or f"error in the stream: {error_message(parsed.error)}"
        for choice in parsed.choices:
            if choice.finish_reason:
                outcome.finish_reason = choice.finish_reason
            delta = choice.delta
            if choice.text or (
                delta is not None and (delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
            ):
                outcome.chunk_times_s.append(now)
            else:
                self._choice_times_s.append(now)
        if parsed.usage is not None:
            self._take_usage(parsed.usage)

    def _take_usage(self, usage: _Usage) -> None:
        outcome = self.outcome
        outcome.is_counted = True
        outcome.prompt_tokens, outcome.output_tokens = usage.prompt_tokens, usage.completion_tokens
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            outcome.cached_tokens = details.cached_tokens


def error_message(error: object) -> str:
    """The message within an OpenAI error object, or whatever it is, on one line."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]
