"""The OpenAI endpoints and tokenisation: read, check, refuse, hand over. Nothing runs here; responses run calls."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from threefold.errors import InvalidRequestError
from threefold.request import SamplingParams
from threefold.server.body import read_object, validate
from threefold.server.call import Call
from threefold.server.description import json_body
from threefold.server.logprobs import LogprobFormat
from threefold.server.prompts import TextPrompt, truncated
from threefold.server.refusals import refuse_unbuilt
from threefold.server.sampling import chat_sampling, completion_sampling
from threefold.server.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from threefold.server.shapes import ChatShape, TextShape
from threefold.server.state import ServerState, state_of
from threefold.server.stream import CallResponse, ignored_fields_header

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatCompletionRequest), response_model=None)
async def chat_completions(request: Request) -> Response:
    """Answer a chat."""
    arrival_s, state = _open(request)
    wish = validate(ChatCompletionRequest, await read_object(request, state.config.max_body_bytes))
    state.check_model(wish.model)
    ignored = refuse_unbuilt(wish.model_extra or {})
    ids = truncated(await state.chats.token_ids(wish), wish.truncate_prompt_tokens, state.client.info.max_model_len)
    prompts = [TextPrompt(ids, None)]
    params = chat_sampling(wish, state.client.info.default_sampling, _room(state, prompts))
    call = _call(
        request, state, wish, prompts=prompts, params=params, prefix="chatcmpl", arrival_s=arrival_s, ignored=ignored
    )
    return CallResponse(state, call, ChatShape(call, _token_format(state, wish)))


@router.post("/v1/completions", openapi_extra=json_body(CompletionRequest), response_model=None)
async def completions(request: Request) -> Response:
    """Go on with a text."""
    arrival_s, state = _open(request)
    wish = validate(CompletionRequest, await read_object(request, state.config.max_body_bytes))
    state.check_model(wish.model)
    ignored = refuse_unbuilt(wish.model_extra or {})
    prompts = await state.prompts.read(wish.prompt, add_special_tokens=wish.add_special_tokens)
    limit, longest = wish.truncate_prompt_tokens, state.client.info.max_model_len
    prompts = [TextPrompt(truncated(one.token_ids, limit, longest), one.text) for one in prompts]
    params = completion_sampling(wish, state.client.info.default_sampling, _room(state, prompts))
    call = _call(
        request, state, wish, prompts=prompts, params=params, prefix="cmpl", arrival_s=arrival_s, ignored=ignored
    )
    shape = TextShape(
        call,
        _token_format(state, wish),
        echoes=[_text_of(state, prompt) for prompt in prompts] if wish.echo else None,
        shows_prompt_logprobs=wish.prompt_logprobs is not None,
    )
    return CallResponse(state, call, shape)


@router.get("/v1/models", response_model=None)
async def models(request: Request) -> Response:
    """The names served here."""
    state = state_of(request)
    cards = [_model_card(state, name) for name in state.client.info.served_model_names]
    return json_response({"object": "list", "data": cards})


@router.get("/v1/models/{model_id:path}", response_model=None)
async def model(request: Request, model_id: str) -> Response:
    """One served name."""
    state = state_of(request)
    state.check_model(model_id)
    return json_response(_model_card(state, model_id))


@router.post("/tokenize", openapi_extra=json_body(TokenizeTextRequest, TokenizeChatRequest), response_model=None)
async def tokenize(request: Request) -> Response:
    """A text or a chat as token ids."""
    state = state_of(request)
    body = await read_object(request, state.config.max_body_bytes)
    if "messages" in body:
        chat = validate(TokenizeChatRequest, body)
        state.check_model(chat.model)
        ignored = refuse_unbuilt(chat.model_extra or {})
        ids, wants_texts = await state.chats.token_ids(chat), chat.return_token_strs
    else:
        text = validate(TokenizeTextRequest, body)
        state.check_model(text.model)
        ignored = refuse_unbuilt(text.model_extra or {})
        wants_texts = text.return_token_strs
        ids = await state.prompts.encode(
            text.prompt, add_special_tokens=text.add_special_tokens, param="prompt", may_be_empty=True
        )
    texts = [_token_text(state, token_id) for token_id in ids] if wants_texts else None
    reply = {
        "count": len(ids),
        "max_model_len": state.client.info.max_model_len,
        "tokens": ids,
        "token_strs": texts,
    }
    return json_response(reply, ignored)


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest), response_model=None)
async def detokenize(request: Request) -> Response:
    """Token ids as text."""
    state = state_of(request)
    wish = validate(DetokenizeRequest, await read_object(request, state.config.max_body_bytes))
    state.check_model(wish.model)
    ids = state.prompts.check(wish.tokens, "tokens") if wish.tokens else []
    text = state.client.tokenizer.decode(ids, skip_special_tokens=False)
    return json_response({"prompt": text.encode("utf-8", "replace").decode()}, sorted(wish.model_extra or {}))


def json_response(value: object, ignored: Sequence[str] = ()) -> Response:
    """A value as a JSON response."""
    response = Response(msgspec.json.encode(value), media_type="application/json")
    response.raw_headers += ignored_fields_header(list(ignored))
    return response


def _open(request: Request) -> tuple[float, ServerState]:
    state = state_of(request)
    arrival_s = state.clock()
    state.check_open()
    return arrival_s, state


def _call(
    request: Request,
    state: ServerState,
    wish: GenerationRequest,
    *,
    prompts: list[TextPrompt],
    params: SamplingParams,
    prefix: str,
    arrival_s: float,
    ignored: list[str],
) -> Call:
    options = wish.stream_options
    if options is not None and not wish.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    is_measured = wish.speculation is not None and wish.speculation.metrics
    if is_measured and (params.n > 1 or len(prompts) > 1):
        raise InvalidRequestError("speculation.metrics is for requests with one answer", param="speculation")
    request_id = wish.request_id or request.scope["state"].get("request_id") or uuid.uuid4().hex
    return Call(
        response_id=f"{prefix}-{request_id}",
        created=int(time.time()),
        model=wish.model or state.model_name,
        endpoint=request.url.path,
        prompts=prompts,
        params=params,
        arrival_s=arrival_s,
        priority=wish.priority or 0,
        cache_salt=wish.cache_salt or "",
        is_stream=bool(wish.stream),
        stream_interval=max(wish.stream_interval or 1, state.config.stream_interval),
        wants_usage=bool(options and options.include_usage),
        wants_running_usage=bool(options and options.continuous_usage_stats),
        wants_token_ids=bool(wish.return_token_ids),
        wants_metrics=is_measured,
        ignored_fields=ignored,
    )


def _token_format(state: ServerState, wish: GenerationRequest) -> LogprobFormat:
    return LogprobFormat(state.client.tokenizer, as_ids=bool(wish.return_tokens_as_token_ids))


def _room(state: ServerState, prompts: list[TextPrompt]) -> int:
    return state.client.info.max_model_len - max(len(prompt.token_ids) for prompt in prompts)


def _text_of(state: ServerState, prompt: TextPrompt) -> str:
    if prompt.text is not None:
        return prompt.text
    return str(state.client.tokenizer.decode(prompt.token_ids, skip_special_tokens=False))


def _token_text(state: ServerState, token_id: int) -> str:
    text: str = state.client.tokenizer.decode([token_id], skip_special_tokens=False)
    return text.encode("utf-8", "replace").decode()


def _model_card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.started_s,
        "owned_by": "threefold",
        "root": state.model_name,
        "parent": None,
        "max_model_len": state.client.info.max_model_len,
        "permission": [],
    }
