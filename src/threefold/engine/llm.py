"""Threefold without a server: prompts in, answers out, in this process.

The same engine, the same checks and the same text edge as behind HTTP; only the loop is driven by the caller's thread.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from threefold.config import EngineConfig
from threefold.engine.answer import Answer, merge
from threefold.engine.build import build_engine, make_tokenizer
from threefold.engine.options import config_from_options
from threefold.engine.outputs import OutputDelta
from threefold.errors import InvalidRequestError, RequestFailedError
from threefold.request import FinishReason, Request, SamplingParams
from threefold.step import TokenDelta, TokenLogprobs
from threefold.text.prepare import ModelLimits, prepare, seed_source
from threefold.text.template_worker import MAX_RENDERED_BYTES, Template, refusal

DEFAULT_MAX_TOKENS = 256

Message = dict[str, str]
"""{"role": …, "content": …}"""


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


class LLM:
    """An engine in this process.

    Args:
        model: folder, GGUF file or hub id; None = the default model, fetched when it is not there.
        engine_config: everything, as configs; then `model` and options must be left out.
        options: fields of the configs by name, as vLLM's `LLM` takes them: max_model_len=4096, max_num_seqs=32,
            dtype="float32", speculative_config={"method": "ngram", "num_speculative_tokens": 5}, …

    Raises:
        OperatorError: the model cannot be loaded, or an option cannot hold.
    """

    def __init__(self, model: str | None = None, *, engine_config: EngineConfig | None = None, **options: Any) -> None:
        config = config_from_options(model, options) if engine_config is None else engine_config
        self._core, self.info = build_engine(config)
        self.tokenizer = make_tokenizer(self.info)
        self._limits = ModelLimits(self.info.max_model_len, self.info.vocab_size, frozenset(self.info.eos_token_ids))
        self._draw_seed = seed_source(self.info.seed)
        self._request_ids = itertools.count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; the engine is not used again."""
        self._core.close()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all at once in one running batch.

        Args:
            prompts: texts or token ids.
            params: for all, or one each; None = the model's own defaults.

        Returns:
            One output a prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or a parameter cannot be run; then nothing has run.
            RequestFailedError: a request hit a fault inside the engine.
        """
        listed: list[str | list[int]] = [prompts] if isinstance(prompts, str) else list(prompts)
        wishes = self._params_for(listed, params)
        batch = _Batch(self, [self._encode(prompt) for prompt in listed], wishes)
        for _ in batch.run():
            pass
        return batch.outputs([prompt if isinstance(prompt, str) else None for prompt in listed])

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> RequestOutput:
        """Answer a conversation."""
        prompt, batch = self._chat_batch(messages, params)
        for _ in batch.run():
            pass
        return batch.outputs([prompt])[0]

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[str]:
        """Answer a conversation, text as it comes; leaving the iterator early ends the request."""
        _, batch = self._chat_batch(messages, params)
        for _, piece in batch.run():
            if piece.text:
                yield piece.text

    def _chat_batch(self, messages: Sequence[Message], params: SamplingParams | None) -> tuple[str, _Batch]:
        prompt = self.render_chat(messages)
        token_ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        return prompt, _Batch(self, [token_ids], self._params_for([prompt], params))

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The prompt's text for a conversation.

        Raises:
            InvalidRequestError: the model has no chat template, or the template refuses these messages.
        """
        chat = {"messages": list(messages), "add_generation_prompt": True}
        template = self._template
        try:
            return template.render(chat, {}, MAX_RENDERED_BYTES)
        except Exception as error:  # a template can raise anything; the fault goes to its caller
            raise InvalidRequestError(refusal(error), param="messages") from error

    @cached_property
    def _template(self) -> Template:
        source = self.tokenizer.chat_template
        if source is None:
            raise InvalidRequestError("this model has no chat template; use generate with plain text")
        return Template(source, self.tokenizer.special_tokens)

    def default_params(self) -> SamplingParams:
        """The sampling defaults of the model's makers over the API's."""
        values: dict[str, Any] = dict(self.info.default_sampling)
        if "top_k" in values:
            values["top_k"] = int(values["top_k"])
        return SamplingParams(max_tokens=DEFAULT_MAX_TOKENS, **values)

    def _encode(self, prompt: str | list[int]) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _params_for(
        self, prompts: Sequence[object], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None:
            return [self.default_params()] * len(prompts)
        if isinstance(params, SamplingParams):
            return [params] * len(prompts)
        if len(params) != len(prompts):
            raise InvalidRequestError(f"{len(prompts)} prompts and {len(params)} params; give one, or one each")
        return list(params)


class _Batch:
    """Prompts that are answered together."""

    def __init__(self, llm: LLM, prompts: list[list[int]], wishes: list[SamplingParams]) -> None:
        self._core = llm._core
        self._prompts = prompts
        self._whole: dict[int, OutputDelta] = {}  # by request id: all pieces so far, merged
        self._of_prompt: list[list[int]] = []
        self._answers: dict[int, Answer] = {}
        requests = []
        for prompt, params in zip(prompts, wishes, strict=True):
            ready = prepare(prompt, params, llm._limits, llm.tokenizer, llm._draw_seed)
            ids = [next(llm._request_ids) for _ in ready.seeds]
            self._of_prompt.append(ids)
            for index, (request_id, seed) in enumerate(zip(ids, ready.seeds, strict=True)):
                self._answers[request_id] = Answer(index, llm.tokenizer, params)
                requests.append(
                    Request(
                        request_id,
                        prompt,
                        replace(ready.params, seed=seed),
                        max_total_tokens=ready.max_total_tokens,
                        end_token_ids=ready.end_token_ids,
                        arrival_s=time.monotonic(),
                    )
                )
        for request in requests:  # only when all of them are sound
            self._core.add_request(request)

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
        for text, prompt, ids in zip(texts, self._prompts, self._of_prompt, strict=True):
            pieces = [self._whole[request_id] for request_id in ids]
            results.append(
                RequestOutput(
                    prompt=text,
                    prompt_token_ids=prompt,
                    outputs=[_completion(piece) for piece in pieces],
                    prompt_logprobs=pieces[0].prompt_logprobs,
                    num_cached_tokens=pieces[0].num_cached_tokens,
                )
            )
        return results


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
