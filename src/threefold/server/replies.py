"""What clients get back, as msgspec structs: the shapes of OpenAI's responses and vLLM's additions to them.

An unset field is left out of the JSON, a field that is None is null.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class _Reply(msgspec.Struct, omit_defaults=True):
    """Leaves unset fields out."""


class PromptTokensDetails(msgspec.Struct):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Of the answer's tokens; the two prediction figures are drafts verified, per OpenAI's own names."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = 0


class Usage(_Reply):
    """Tokens of a call."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    """One likely token, as chat completions show it."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """The token taken, as chat completions show it."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`logprobs` of a text choice; columns of equal length."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct):
    """One candidate for one prompt token."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class Message(msgspec.Struct):
    """An assistant's whole message."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Delta(_Reply):
    """A piece of an assistant's message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(_Reply):
    """One answer of a chat completion."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(_Reply):
    """A piece of one answer of a chat completion."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextChoice(_Reply):
    """One answer of a text completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatCompletion(_Reply):
    """Response of /v1/chat/completions."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET


class ChatChunk(_Reply):
    """One frame of a streamed chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET


class TextCompletion(_Reply):
    """Response of /v1/completions, or one frame of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    metrics: dict[str, Any] | UnsetType = UNSET
