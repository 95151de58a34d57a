"""Fields that other servers build and this one does not: refused by name, never ignored.

A field passes when its value asks for nothing (null, false, empty, or the value that means "as usual"). Names that no
server knows are handed back, so that the response can say they were ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from threefold.errors import InvalidRequestError, NotSupportedError

_Neutral = Callable[[Any], bool]


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _is_one_of(*values: Any) -> _Neutral:
    return lambda value: value is None or any(value == neutral for neutral in values)


def _is_text_format(value: Any) -> bool:
    return _is_empty(value) or (isinstance(value, dict) and value.get("type") == "text")


UNBUILT: Mapping[str, _Neutral] = {
    # output held to a grammar
    "response_format": _is_text_format,
    "structured_outputs": _is_empty,
    "guided_json": _is_empty,
    "guided_regex": _is_empty,
    "guided_choice": _is_empty,
    "guided_grammar": _is_empty,
    "guided_json_object": _is_empty,
    "guided_decoding_backend": _is_empty,
    "guided_whitespace_pattern": _is_empty,
    "structural_tag": _is_empty,
    # tools in their first form; the present form is looked at as a whole below
    "functions": _is_empty,
    "function_call": _is_one_of("none"),
    # other ways to search
    "best_of": _is_one_of(1),
    "use_beam_search": _is_empty,
    "length_penalty": _is_one_of(1),
    "early_stopping": _is_empty,
    "suffix": lambda value: value is None,
    # other inputs
    "prompt_embeds": _is_empty,
    "modalities": _is_one_of(["text"], []),
    "audio": _is_empty,
    "documents": _is_empty,
    "mm_processor_kwargs": _is_empty,
    "media_io_kwargs": _is_empty,
    "web_search_options": _is_empty,
    "prediction": _is_empty,
    # other outputs and controls
    "logprob_token_ids": _is_empty,
    "logits_processors": _is_empty,
    "thinking_token_budget": _is_empty,
    "repetition_detection": _is_empty,
    "detokenize": _is_one_of(True),
    "spaces_between_special_tokens": _is_one_of(True),
    "vllm_xargs": _is_empty,
    "kv_transfer_params": _is_empty,
    "lora_request": _is_empty,
    "chat_template": _is_empty,
}

HARMLESS = frozenset({"user", "parallel_tool_calls", "include_reasoning", "tools", "tool_choice"})
"""Known, and true of every answer given here, or looked at below."""


def refuse_unbuilt(extra: Mapping[str, Any]) -> list[str]:
    """Look at the fields that the schema does not have.

    Returns:
        The names that are unknown and were ignored.

    Raises:
        NotSupportedError: a known field asks for something that is not built.
        InvalidRequestError: the fields contradict each other.
    """
    _refuse_tools(extra.get("tools"), extra.get("tool_choice"))
    ignored = []
    for name, value in extra.items():
        is_neutral = UNBUILT.get(name)
        if is_neutral is not None:
            if not is_neutral(value):
                raise NotSupportedError(_reason(name), param=name, code="unsupported_parameter")
        elif name not in HARMLESS:
            ignored.append(name)
    return ignored


def _refuse_tools(tools: Any, choice: Any) -> None:
    if choice not in (None, "none", "auto") and _is_empty(tools):
        raise InvalidRequestError("tool_choice needs tools", param="tool_choice")
    if not _is_empty(tools) and choice != "none":
        raise NotSupportedError(
            "tool calling is not built here; send tool_choice 'none' or leave tools away",
            param="tools",
            code="unsupported_parameter",
        )


def _reason(name: str) -> str:
    if name == "chat_template":
        return "chat_template is not taken from requests; the operator sets it with --chat-template"
    if name == "prediction":
        return "prediction is not supported; drafts are found by the engine itself (see `speculation`)"
    return f"{name} is not supported by this server; leave it out"
