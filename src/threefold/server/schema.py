"""What clients may send: OpenAI's fields, and the extras that vLLM's users know.

Knows types and nothing else: ranges are checked once, by SamplingParams; what is known but not built is refused by
refusals.py; names that nobody knows stay in `model_extra`. Types are strict, as OpenAI's are: "1" is no number.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from threefold.server.limits import MAX_INT, MAX_MESSAGES

TOKEN_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        TOKEN_IDS_SCHEMA,
        {"type": "array", "items": TOKEN_IDS_SCHEMA, "minItems": 1},
    ]
}

Int32 = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Prompt = Annotated[Any, WithJsonSchema(PROMPT_SCHEMA)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())


class StreamOptions(_Wire):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    """A last chunk with the usage."""
    continuous_usage_stats: bool | None = None
    """Usage so far on every chunk."""


class SpeculationOptions(_Wire):
    """Threefold's own switch for drafts, per request."""

    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT)] | None = None
    """Most draft tokens a step; 0 = none."""
    metrics: bool = False
    """Report this request's timings and acceptance under `metrics` in the response."""


class GenerationRequest(_Wire):
    """The fields that both kinds of completion share."""

    model: str | None = None
    n: Int32 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    max_tokens: Int32 | None = None
    min_tokens: Int32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int32 | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Int32 | None = None
    seed: Int64 | None = None
    skip_special_tokens: bool | None = None
    speculation: SpeculationOptions | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_INT)] | None = None
    priority: Int32 | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")] | None = None
    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Int32 | None = None
    add_special_tokens: bool = True


class ChatMessage(_Wire):
    """One message; what else it carries is for the template."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[str | dict[str, Any]] | None = None


class ChatFields(_Wire):
    """What makes a prompt of a chat."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = False
    reasoning_effort: str | None = None


class ChatCompletionRequest(GenerationRequest, ChatFields):
    """POST /v1/chat/completions."""

    max_completion_tokens: Int32 | None = None
    logprobs: bool | None = None
    top_logprobs: Int32 | None = None


class TokenizeTextRequest(_Wire):
    """POST /tokenize with a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatFields):
    """POST /tokenize with a chat."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(_Wire):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
