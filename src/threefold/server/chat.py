"""From messages to a prompt's token ids: through the model's chat template, and through it alone.

Text parts only. The template's text is tokenised as Hugging Face does it: special tokens written in it are special
tokens, also where a user's message spells them out. That is a known hazard of the format; a gateway that serves
untrusted text must strip such spellings before it sends them here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from threefold.errors import InvalidRequestError, NotSupportedError
from threefold.server.prompts import PromptTokenizer
from threefold.server.schema import ChatFields, ChatMessage
from threefold.server.template import TemplateRenderer

RESERVED_VARIABLES = frozenset(
    {
        *("chat_template", "messages", "conversation", "tools", "documents"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
        *("additional_special_tokens", "raise_exception", "strftime_now"),
    }
)
"""What chat_template_kwargs may not set: the server's own arguments and the model's own tokens."""


class ChatPrompts:
    """Makes prompts of chats.

    Args:
        tokenizer: the model's, bounded.
        renderer: of the model's chat template; None = the model has none.
    """

    def __init__(self, tokenizer: PromptTokenizer, renderer: TemplateRenderer | None) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer

    async def token_ids(self, wish: ChatFields) -> list[int]:
        """The chat's prompt.

        Raises:
            InvalidRequestError: no template, a refused message, a reserved variable, or the template's own refusal.
            NotSupportedError: a content part that is not text.
        """
        if self._renderer is None:
            raise InvalidRequestError(
                "this model has no chat template: use /v1/completions, or start the server with --chat-template",
                param="messages",
            )
        extra = _variables(wish)
        messages = [_template_message(message, index) for index, message in enumerate(wish.messages)]
        is_continuing = bool(wish.continue_final_message)
        if is_continuing and wish.add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        wants_opening = not is_continuing if wish.add_generation_prompt is None else wish.add_generation_prompt
        chat = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": wants_opening}
        text = await self._renderer.render(chat, extra)
        if is_continuing:
            text = _cut_after_final_message(text, messages[-1]["content"])
        return await self._tokenizer.encode(text, add_special_tokens=wish.add_special_tokens, param="messages")


def _variables(wish: ChatFields) -> dict[str, Any]:
    extra = dict(wish.chat_template_kwargs or {})
    reserved = sorted(RESERVED_VARIABLES & extra.keys())
    if reserved:
        raise InvalidRequestError(f"chat_template_kwargs may not set {reserved[0]}", param="chat_template_kwargs")
    if wish.reasoning_effort is not None:
        extra.setdefault("reasoning_effort", wish.reasoning_effort)
    return extra


def _template_message(message: ChatMessage, index: int) -> dict[str, Any]:
    more = dict(message.model_extra or {})
    calls = more.pop("tool_calls", None)
    rendered: dict[str, Any] = {"role": message.role, "content": _text(message.content, index)}
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        if more.get(name) is not None:
            rendered[name] = more[name]
    if calls:
        rendered["tool_calls"] = [_template_tool_call(call, index) for call in _as_list(calls, index)]
    return rendered


def _as_list(calls: Any, index: int) -> list[Any]:
    if not isinstance(calls, list):
        raise InvalidRequestError("tool_calls must be a list", param=f"messages.{index}.tool_calls")
    return calls


def _template_tool_call(call: Any, index: int) -> dict[str, Any]:
    """A past tool call as templates read it: arguments as an object, where the API has them as a JSON string."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidRequestError("a tool call needs a function", param=f"messages.{index}.tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (ValueError, RecursionError):
            raise InvalidRequestError(
                "a tool call's arguments must be a JSON string", param=f"messages.{index}.tool_calls"
            ) from None
    return {**call, "function": {**function, "arguments": arguments}}


def _text(content: str | list[str | dict[str, Any]] | None, index: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_text(part, index) for part in content)


def _part_text(part: str | dict[str, Any], index: int) -> str:
    if isinstance(part, str):
        return part
    param = f"messages.{index}.content"
    kind = part.get("type", "text")
    if kind not in ("text", "refusal", "input_text", "output_text"):
        raise NotSupportedError(f"content parts of type {str(kind)[:50]!r} are not supported; send text", param=param)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise InvalidRequestError("a text part needs a string in `text`", param=param)
    return text


def _cut_after_final_message(text: str, final: str) -> str:
    """The rendered chat up to the end of its last message, so that the answer goes on where it stops."""
    stripped = final.strip()
    start = text.rfind(stripped) if stripped else -1
    if start < 0:
        raise InvalidRequestError(
            "continue_final_message: the template does not show the last message as it is",
            param="continue_final_message",
        )
    whole = final.lstrip()
    # A template may trim messages; keep the message's own trailing space where it was kept.
    end = start + (len(whole) if text.startswith(whole, start) else len(stripped))
    return text[:end]
