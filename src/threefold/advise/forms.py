"""The forms of log lines, and what each says about a request.

    recording     {"threefold": 1, ...}                         `threefold serve --record`
    openai        {"request": {...}, "response": {...}}         bodies as they went over the wire
    openai-batch  {"custom_id", "body"} and {"custom_id", "response": {"body"}}, joined by custom_id
    sharegpt      {"conversations": [{"from", "value"}, ...]}   each answer of a conversation is a request
    trace         {"timestamp", "input_length", "output_length", "hash_ids"}   Mooncake: lengths and 512-token blocks
    spec-bench    {"turns": [...], "category"}                  prompts alone
    prompts       {"prompt": "...", "output"?: "..."}           prompts, with answers where there are some

A value of the wrong type is a ValueError with the words for one line; unknown keys are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from threefold.advise.logged import LoggedRequest

TRACE_BLOCK_TOKENS = 512
"""Tokens a hash of the Mooncake traces stands for."""
_TIMES = ("arrival_s", "arrival", "timestamp", "time", "created_at", "start_time")
_SHAREGPT_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard")
_MOST_TOKENS = 1 << 24


@dataclass(slots=True)
class BatchHalf:
    """One of the two lines that OpenAI's batch form has for a request; both once joined."""

    custom_id: str
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None

    def joined(self) -> LoggedRequest:
        """The request, with what is known of it."""
        return _from_bodies(self.request or {}, self.response or {}, None)


def read_entry(entry: dict[str, Any]) -> tuple[str, list[LoggedRequest] | BatchHalf]:
    """The form of a line, and the requests or the half of one that it holds.

    Raises:
        ValueError: no form that is known, or a value of the wrong type.
    """
    for form, is_it, read in _FORMS:
        if is_it(entry):
            return form, read(entry)
    keys = ", ".join(sorted(map(str, entry))[:6]) or "none"
    raise ValueError(f"is no request: wants request and response, conversations, turns, prompt or hash_ids; has {keys}")


def _recording(entry: dict[str, Any]) -> list[LoggedRequest]:
    return [
        LoggedRequest(
            arrival_s=_number(entry, "arrival_s"),
            prompt_token_ids=_ids(entry, "prompt_token_ids"),
            output_token_ids=_ids(entry, "output_token_ids"),
            num_prompt_tokens=_count(entry, "prompt_tokens"),
            num_output_tokens=_count(entry, "output_tokens"),
            block_names=_list(entry, "block_hashes"),
            pairs=_ids(entry, "pairs"),
            temperature=_number(entry, "temperature"),
            is_structured=bool(entry.get("is_structured")),
            category=str(entry.get("category") or ""),
            ttft_ms=_number(entry, "ttft_ms"),
            e2e_ms=_number(entry, "e2e_ms"),
        )
    ]


def _openai(entry: dict[str, Any]) -> list[LoggedRequest]:
    request = _object(entry, "request")
    response = _object(entry, "response") if entry.get("response") is not None else {}
    made = _from_bodies(request.get("body", request), response.get("body", response), _arrival(entry))
    made.category = str(entry.get("category") or made.category)
    return [made]


def _openai_batch(entry: dict[str, Any]) -> BatchHalf:
    half = BatchHalf(str(entry["custom_id"]))
    if isinstance(entry.get("body"), dict):
        half.request = entry["body"]
    elif entry.get("error"):
        raise ValueError("the batch's answer is an error")
    else:
        half.response = _object(_object(entry, "response"), "body")
    return half


def _from_bodies(request: Mapping[str, Any], response: Mapping[str, Any], arrival_s: float | None) -> LoggedRequest:
    """A request from the API's own bodies."""
    messages = request.get("messages")
    prompt = request.get("prompt")
    if messages is not None and not (isinstance(messages, list) and all(isinstance(one, dict) for one in messages)):
        raise ValueError("messages must be a list of objects")
    usage = _object_or_empty(response, "usage")
    created = response.get("created")
    if arrival_s is None and isinstance(created, int | float):
        arrival_s = float(created)
    made = LoggedRequest(
        arrival_s=arrival_s,
        messages=messages,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=prompt if _is_ids(prompt) else None,
        num_prompt_tokens=_count(usage, "prompt_tokens"),
        num_output_tokens=_count(usage, "completion_tokens"),
        temperature=_number(request, "temperature"),
        is_structured=_demands_json(request),
    )
    _take_answer(made, response.get("choices"))
    if made.messages is None and made.prompt is None and made.prompt_token_ids is None and made.output is None:
        raise ValueError("holds neither messages, nor a prompt, nor an answer")
    return made


def _take_answer(made: LoggedRequest, choices: Any) -> None:
    """The first choice's text and, where the server gave them, its token ids."""
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        return
    choice = choices[0]
    message = _object_or_empty(choice, "message")
    text = message.get("content", choice.get("text"))
    made.output = text if isinstance(text, str) else None
    if _is_ids(choice.get("token_ids")):
        made.output_token_ids = choice["token_ids"]
    if message.get("tool_calls"):
        made.is_structured = True


def _demands_json(request: Mapping[str, Any]) -> bool:
    wanted = request.get("response_format")
    is_json = isinstance(wanted, dict) and wanted.get("type") not in (None, "text")
    guided = ("tools", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")
    return is_json or any(request.get(name) for name in guided)


def _sharegpt(entry: dict[str, Any]) -> list[LoggedRequest]:
    made: list[LoggedRequest] = []
    messages: list[dict[str, Any]] = []
    for turn in _list(entry, "conversations") or []:
        if not (isinstance(turn, dict) and isinstance(turn.get("value"), str)):
            raise ValueError("conversations must be a list of objects with from and value")
        is_answer = turn.get("from") in _SHAREGPT_ANSWERS
        if is_answer and messages:
            made.append(LoggedRequest(messages=list(messages), output=turn["value"]))
        role = "assistant" if is_answer else "system" if turn.get("from") == "system" else "user"
        messages.append({"role": role, "content": turn["value"]})
    if not made:
        raise ValueError("the conversation has no answer")
    return made


def _trace(entry: dict[str, Any]) -> list[LoggedRequest]:
    made = LoggedRequest(
        num_prompt_tokens=_count(entry, "input_length"),
        num_output_tokens=_count(entry, "output_length"),
        block_names=_list(entry, "hash_ids"),
        block_tokens=TRACE_BLOCK_TOKENS,
    )
    milliseconds = _number(entry, "timestamp")
    made.arrival_s = None if milliseconds is None else milliseconds / 1000
    if not made.num_prompt_tokens:
        raise ValueError("input_length must be a whole number of at least 1")
    return [made]


def _spec_bench(entry: dict[str, Any]) -> list[LoggedRequest]:
    turns = _list(entry, "turns")
    if not turns or not isinstance(turns[0], str):
        raise ValueError("turns must be a list of texts")
    chat = [{"role": "user", "content": turns[0]}]
    return [LoggedRequest(messages=chat, category=str(entry.get("category") or ""))]


def _prompts(entry: dict[str, Any]) -> list[LoggedRequest]:
    output = next((entry[key] for key in ("output", "completion", "canonical_solution") if key in entry), None)
    if not isinstance(entry["prompt"], str) or not entry["prompt"]:
        raise ValueError("prompt must be a text that is not empty")
    return [
        LoggedRequest(
            arrival_s=_arrival(entry),
            prompt=entry["prompt"],
            output=output if isinstance(output, str) else None,
            num_output_tokens=_count(entry, "output_tokens"),
            category=str(entry.get("category") or ""),
        )
    ]


def _arrival(entry: Mapping[str, Any]) -> float | None:
    """Seconds from any of the keys that logs use; ISO 8601 texts are read too."""
    for key in _TIMES:
        value = entry.get(key)
        if isinstance(value, str):
            try:
                return datetime.fromisoformat(value).timestamp()
            except ValueError:
                raise ValueError(f"{key} is no time: {value[:40]!r}") from None
        if value is not None:
            return _number(entry, key)
    return None


def _object(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be an object")
    return value


def _object_or_empty(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _list(entry: Mapping[str, Any], key: str) -> list[Any] | None:
    value = entry.get(key)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{key} must be a list")
    return value


def _number(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise ValueError(f"{key} must be a number")
    return float(value)


def _count(entry: Mapping[str, Any], key: str) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise ValueError(f"{key} must be a whole number between 0 and {_MOST_TOKENS}")
    return value


def _ids(entry: Mapping[str, Any], key: str) -> list[int] | None:
    value = _list(entry, key)
    if value and not _is_ids(value):
        raise ValueError(f"{key} must hold whole numbers")
    return value


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(one) is int for one in value)


_Reader = Callable[[dict[str, Any]], list[LoggedRequest] | BatchHalf]
_FORMS: tuple[tuple[str, Callable[[dict[str, Any]], bool], _Reader], ...] = (
    ("recording", lambda entry: "threefold" in entry, _recording),
    ("openai-batch", lambda entry: "custom_id" in entry and ("body" in entry or "response" in entry), _openai_batch),
    ("openai", lambda entry: "request" in entry, _openai),
    ("sharegpt", lambda entry: "conversations" in entry, _sharegpt),
    ("trace", lambda entry: "input_length" in entry, _trace),
    ("spec-bench", lambda entry: "turns" in entry, _spec_bench),
    ("prompts", lambda entry: "prompt" in entry, _prompts),
)
