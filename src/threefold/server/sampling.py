"""From the fields of a request to SamplingParams: the caller's value, else the model's default, else OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threefold.errors import ContextLengthError, InvalidRequestError
from threefold.request import MAX_LOGPROBS, SamplingParams
from threefold.server.schema import ChatCompletionRequest, CompletionRequest, GenerationRequest

DEFAULT_COMPLETION_TOKENS = 16
MODEL_MAY_DEFAULT = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SAME_NAME = (
    *MODEL_MAY_DEFAULT,
    "n",
    "min_tokens",
    "frequency_penalty",
    "presence_penalty",
    "include_stop_str_in_output",
    "ignore_eos",
    "seed",
    "skip_special_tokens",
)


def chat_sampling(wish: ChatCompletionRequest, defaults: Mapping[str, Any], room_tokens: int) -> SamplingParams:
    """Sampling of a chat completion; without a limit the answer may fill the context.

    Args:
        wish: the request.
        defaults: the model's sampling defaults.
        room_tokens: tokens that the context has left after the prompt.

    Raises:
        InvalidRequestError: a value is out of range, or fields contradict each other.
    """
    if wish.top_logprobs and not wish.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    if wish.top_logprobs is not None and not 0 <= wish.top_logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(
            f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {wish.top_logprobs}", param="top_logprobs"
        )
    _check_completion_tokens(wish.max_completion_tokens, room_tokens)
    asked = wish.max_tokens if wish.max_completion_tokens is None else wish.max_completion_tokens
    limit = int(defaults.get("max_tokens") or 0) or None
    return _sampling(
        wish,
        defaults,
        max_tokens=asked if asked is not None else (limit and min(limit, max(room_tokens, 1))),
        logprobs=(wish.top_logprobs or 0) if wish.logprobs else None,
        prompt_logprobs=wish.prompt_logprobs,
    )


def _check_completion_tokens(asked: int | None, room_tokens: int) -> None:
    """Under its own name; of a prompt that leaves no room, the prompt is what is wrong."""
    if asked is None or room_tokens < 1 or 1 <= asked <= room_tokens:
        return
    kind = InvalidRequestError if asked < 1 else ContextLengthError
    raise kind(
        f"max_completion_tokens must be between 1 and {room_tokens}, which is what the prompt leaves of the context; "
        f"got {asked}",
        param="max_completion_tokens",
    )


def completion_sampling(wish: CompletionRequest, defaults: Mapping[str, Any], room_tokens: int) -> SamplingParams:
    """Sampling of a text completion; without a limit 16 tokens, as OpenAI has it. Arguments and errors as above."""
    asked = wish.max_tokens
    limit = int(defaults.get("max_tokens") or DEFAULT_COMPLETION_TOKENS)
    prompt_logprobs = wish.prompt_logprobs
    if wish.echo and wish.logprobs is not None and prompt_logprobs is None:
        prompt_logprobs = wish.logprobs
    return _sampling(
        wish,
        defaults,
        max_tokens=asked if asked is not None else min(limit, max(room_tokens, 1)),
        logprobs=wish.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _sampling(
    wish: GenerationRequest,
    defaults: Mapping[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    if wish.prompt_logprobs is not None and wish.stream:
        raise InvalidRequestError("prompt_logprobs is not available with stream", param="prompt_logprobs")
    values: dict[str, Any] = {name: defaults[name] for name in MODEL_MAY_DEFAULT if defaults.get(name) is not None}
    if "top_k" in values:
        values["top_k"] = int(values["top_k"])  # defaults come as floats
    values.update((name, value) for name in _SAME_NAME if (value := getattr(wish, name)) is not None)
    if wish.speculation is not None:
        values["max_draft_tokens"] = wish.speculation.max_tokens
    return SamplingParams(
        **values,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        stop=(wish.stop,) if isinstance(wish.stop, str) else tuple(wish.stop or ()),
        stop_token_ids=tuple(wish.stop_token_ids or ()),
        bad_words=tuple(wish.bad_words or ()),
        allowed_token_ids=None if wish.allowed_token_ids is None else tuple(wish.allowed_token_ids),
        logit_bias=_logit_bias(wish.logit_bias or {}),
    )


def _logit_bias(biases: Mapping[str, float]) -> dict[int, float]:
    parsed = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequestError(f"logit_bias: {key[:50]!r} is no token id", param="logit_bias")
        parsed[int(key)] = bias
    return parsed
