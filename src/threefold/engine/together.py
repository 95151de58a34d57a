"""Prompts that `LLM` answers together: requests go to the core, what comes back becomes one output a prompt.

Knows nothing about models, and text only through the answers that it keeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from threefold.engine.answer import Answer, merge
from threefold.engine.core import EngineCore
from threefold.engine.outputs import OutputDelta
from threefold.errors import RequestFailedError
from threefold.request import FinishReason, Request, SamplingParams
from threefold.step import TokenDelta, TokenLogprobs
from threefold.text.detokenizer import TokenDecoder
from threefold.text.prepare import Prepared


@dataclass(slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    """Which of the prompt's n answers."""
    text: str = ""
    """The answer's text."""
    token_ids: list[int] = field(default_factory=list)
    """Its tokens."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry a token, when asked."""
    finish_reason: str | None = None
    """stop or length."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it."""
    num_drafted: int = 0
    """Drafts verified for it."""
    num_accepted: int = 0
    """Of them, accepted."""


@dataclass(slots=True)
class RequestOutput:
    """What one prompt came to."""

    prompt: str | None
    """The prompt's text, None when it came as token ids."""
    prompt_token_ids: list[int]
    """Its tokens."""
    outputs: list[CompletionOutput]
    """n answers."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """For every prompt token but the first, when asked."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""


class Asked(NamedTuple):
    """One prompt and what is wanted of it."""

    prompt: list[int]
    """Token ids."""
    params: SamplingParams
    """As wished."""
    ready: Prepared
    """As the engine understands it."""
    request_ids: list[int]
    """One an answer."""


class Batch:
    """Prompts that are answered together.

    Args:
        core: runs them, and nobody else's.
        tokenizer: of the model.
        asked: all of them sound.
    """

    def __init__(self, core: EngineCore, tokenizer: TokenDecoder, asked: Sequence[Asked]) -> None:
        self._core = core
        self._asked = asked
        self._whole: dict[int, OutputDelta] = {}  # by request id: all pieces so far, merged
        self._answers: dict[int, Answer] = {}
        for one in asked:
            for index, (request_id, seed) in enumerate(zip(one.request_ids, one.ready.seeds, strict=True)):
                self._answers[request_id] = Answer(index, tokenizer, one.params)
                core.add_request(_request(request_id, one, seed))

    def run(self) -> Iterator[tuple[int, OutputDelta]]:
        """Step until all answers have ended, giving (request id, piece); left early, what runs is aborted."""
        open_ids = set(self._answers)
        try:
            while open_ids:
                for delta in self._core.step():
                    if delta.request_id in open_ids:
                        yield delta.request_id, self._take(delta, open_ids)
        finally:
            self._core.abort(open_ids)

    def _take(self, delta: TokenDelta, open_ids: set[int]) -> OutputDelta:
        if delta.error is not None:
            open_ids.discard(delta.request_id)
            raise RequestFailedError(delta.error)
        answer = self._answers[delta.request_id]
        piece = answer.push_delta(delta)
        if answer.finish_reason is not None:
            open_ids.discard(delta.request_id)
            if delta.finish_reason is None:  # a stop string, of which the engine knows nothing
                self._core.abort([delta.request_id])
        whole = self._whole.setdefault(delta.request_id, piece)
        if whole is not piece:
            merge(whole, piece)
        return piece

    def outputs(self, texts: Iterable[str | None]) -> list[RequestOutput]:
        """What each prompt came to."""
        results = []
        for text, one in zip(texts, self._asked, strict=True):
            pieces = [self._whole[request_id] for request_id in one.request_ids]
            results.append(
                RequestOutput(
                    prompt=text,
                    prompt_token_ids=one.prompt,
                    outputs=[_completion(piece) for piece in pieces],
                    prompt_logprobs=pieces[0].prompt_logprobs,
                    num_cached_tokens=pieces[0].num_cached_tokens,
                )
            )
        return results


def _request(request_id: int, asked: Asked, seed: int) -> Request:
    return Request(
        request_id,
        asked.prompt,
        replace(asked.ready.params, seed=seed),
        max_total_tokens=asked.ready.max_total_tokens,
        end_token_ids=asked.ready.end_token_ids,
        arrival_s=time.monotonic(),
    )


def _completion(piece: OutputDelta) -> CompletionOutput:
    assert isinstance(piece.finish_reason, FinishReason)
    return CompletionOutput(
        index=piece.index,
        text=piece.text,
        token_ids=piece.token_ids,
        logprobs=piece.logprobs,
        finish_reason=piece.finish_reason.value,
        stop_reason=piece.stop_reason,
        num_drafted=piece.num_drafted,
        num_accepted=piece.num_accepted,
    )
