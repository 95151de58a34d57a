"""Threefold without a server: prompts in, answers out, in this process.

The same engine, the same checks and the same text edge as behind HTTP; only the loop is driven by the caller's thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from threefold.config import EngineConfig
from threefold.engine.build import build_engine, make_tokenizer
from threefold.engine.options import config_from_options
from threefold.engine.together import Asked, Batch, RequestOutput
from threefold.errors import InvalidRequestError
from threefold.request import SamplingParams
from threefold.text.prepare import ModelLimits, prepare, seed_source
from threefold.text.template_worker import MAX_RENDERED_BYTES, Template, refusal

DEFAULT_MAX_TOKENS = 256

Message = dict[str, str]
"""{"role": …, "content": …}"""


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
        listed = _listed(prompts)
        wishes = self._params_for(listed, params)
        batch = self._batch([self._encode(prompt) for prompt in listed], wishes)
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

    def _chat_batch(self, messages: Sequence[Message], params: SamplingParams | None) -> tuple[str, Batch]:
        prompt = self.render_chat(messages)
        token_ids = self._ids_of(prompt, add_special_tokens=False)
        return prompt, self._batch([token_ids], self._params_for([prompt], params))

    def _batch(self, prompts: Sequence[list[int]], wishes: Sequence[SamplingParams]) -> Batch:
        asked = []
        for prompt, params in zip(prompts, wishes, strict=True):
            ready = prepare(prompt, params, self._limits, self.tokenizer, self._draw_seed)
            asked.append(Asked(prompt, params, ready, [next(self._request_ids) for _ in ready.seeds]))
        return Batch(self._core, self.tokenizer, asked)  # only when all of them are sound

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
        return self._ids_of(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt

    def _ids_of(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except UnicodeError:
            raise InvalidRequestError("the prompt is no valid Unicode: it has half a pair", param="prompt") from None

    def _params_for(
        self, prompts: Sequence[object], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None:
            return [self.default_params()] * len(prompts)
        if isinstance(params, SamplingParams):
            return [params] * len(prompts)
        if not isinstance(params, Sequence) or not all(isinstance(one, SamplingParams) for one in params):
            raise InvalidRequestError(f"params are SamplingParams, one or a list of them; got {params!r:.100}")
        if len(params) != len(prompts):
            raise InvalidRequestError(f"{len(prompts)} prompts and {len(params)} params; give one, or one each")
        return list(params)


def _listed(prompts: object) -> list[str | list[int]]:
    """Prompts one by one."""
    listed = [prompts] if isinstance(prompts, str) else prompts
    if not isinstance(listed, Sequence) or not all(isinstance(one, str | list) for one in listed):
        raise InvalidRequestError(
            f"prompts are a text, a list of texts or a list of lists of token ids; got {prompts!r:.100}", param="prompt"
        )
    return list(listed)
