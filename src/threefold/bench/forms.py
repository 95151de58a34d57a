"""Forms of data sets: one entry of a file to one Prompt. Knows nothing of files, lines or servers.

spec_bench    {"category": "qa", "turns": ["first", "second"]}: the first turn is sent
sharegpt      {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}: the first question;
              its answer's length is estimated at CHARACTERS_PER_TOKEN
humaneval     {"task_id": "…", "prompt": "…"}
custom        {"prompt": "…", "output_tokens": 128?} or {"messages": […]}
openai_batch  {"custom_id": "…", "url": "/v1/chat/completions", "body": {…}}: its body, with our model and streamed
trace         {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [block, …]?}, as Mooncake's, or
              {"timestamp": ms, "prompt": "…"}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from threefold.bench.prompt import MadeUp, Prompt

CHARACTERS_PER_TOKEN = 4
"""English text, the usual vocabularies."""
_QUESTIONERS = ("human", "user")
_ANSWERERS = ("gpt", "assistant", "chatgpt", "bing", "bard")

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a trace's lengths are read."""

    block_tokens: int = 512
    """Tokens that one of its hashes stands for."""
    scale: float = 1.0
    """Every length is multiplied by it."""
    seed: int = 0
    """Of the words made up."""

    def scaled(self, num_tokens: int) -> int:
        """A length as it is asked for here: at least one token."""
        return max(1, round(num_tokens * self.scale))


def parse_entry(entry: object, form: str, sizes: Sizes, index: int) -> Prompt | None:
    """Read one entry.

    Args:
        entry: decoded JSON.
        form: a name of FORMS, or auto: each entry by its own keys.
        sizes: how a trace's lengths are read.
        index: the entry's place in the file, for words that no other entry shares.

    Returns:
        The prompt; None for an entry that is well formed and asks nothing, as ShareGPT has them.

    Raises:
        ValueError: with the words for "what is wrong".
    """
    if not isinstance(entry, dict):
        raise ValueError(f"wants an object with 'turns' or 'prompt', got a {type(entry).__name__}")
    if form == "trace" or (form == "auto" and "timestamp" in entry):
        return _trace(entry, sizes, index)
    return FORMS[_detect(entry) if form == "auto" else form](entry)


def _detect(entry: Entry) -> str:
    for key, form in (("turns", "spec_bench"), ("conversations", "sharegpt"), ("body", "openai_batch")):
        if key in entry:
            return form
    if "prompt" not in entry and "messages" not in entry:
        raise ValueError("wants 'turns' (a list of texts), 'prompt' (a text), 'messages', 'conversations', 'body' or "
                         "'timestamp'")  # fmt: skip
    return "humaneval" if "task_id" in entry else "custom"


def _spec_bench(entry: Entry) -> Prompt:
    turns = entry.get("turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0]:
        raise ValueError("wants 'turns' (a list of texts, the first not empty)")
    return Prompt(turns[0], _category(entry), _length(entry, "output_tokens"))


def _sharegpt(entry: Entry) -> Prompt | None:
    turns = entry.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError("wants 'conversations' (a list of objects with 'from' and 'value')")
    for turn, answer in zip(turns, [*turns[1:], {}], strict=False):
        if turn.get("from") in _QUESTIONERS and isinstance(turn.get("value"), str) and turn["value"]:
            text = answer.get("value") if answer.get("from") in _ANSWERERS else None
            length = max(1, len(text) // CHARACTERS_PER_TOKEN) if isinstance(text, str) else None
            return Prompt(turn["value"], max_tokens=length)
    return None


def _humaneval(entry: Entry) -> Prompt:
    return Prompt(_text(entry, "prompt"), "code")


def _custom(entry: Entry) -> Prompt:
    length = _length(entry, "output_tokens")
    if "messages" in entry:
        _check_messages(entry["messages"])
        return Prompt("", _category(entry), length, body=json.dumps({"messages": entry["messages"]}))
    return Prompt(_text(entry, "prompt"), _category(entry), length)


def _openai_batch(entry: Entry) -> Prompt:
    body = entry.get("body")
    if not isinstance(body, dict):
        raise ValueError("wants 'body' (the request's JSON object)")
    if "messages" in body:
        _check_messages(body["messages"])
    else:
        _text(body, "prompt")
    if entry.get("url") is not None and str(entry["url"]).endswith("/chat/completions") != ("messages" in body):
        raise ValueError(f"its url {entry['url']} does not fit its body")
    fields = {key: value for key, value in body.items() if key not in ("model", "stream", "stream_options")}
    length = _length(body, "max_completion_tokens") or _length(body, "max_tokens")
    return Prompt("", max_tokens=length, body=json.dumps(fields))


def _trace(entry: Entry, sizes: Sizes, index: int) -> Prompt:
    moment = entry.get("timestamp")
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not 0 <= moment < float("inf"):
        raise ValueError("wants 'timestamp' (milliseconds, a number of at least 0)")
    at_s = moment / 1e3
    output = _length(entry, "output_length") or _length(entry, "output_tokens")
    output = sizes.scaled(output) if output is not None else None
    length = _length(entry, "input_length")
    if length is None:
        return Prompt(_text(entry, "prompt"), _category(entry), output, at_s)
    hashes = entry.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(isinstance(each, int) for each in hashes):
        raise ValueError("wants 'hash_ids' (a list of whole numbers)")
    pieces = _pieces(hashes, sizes.scaled(length), sizes.scaled(sizes.block_tokens), index)
    return Prompt("", _category(entry), output, at_s, MadeUp(pieces, sizes.seed))


def _pieces(hashes: list[int], length: int, block: int, index: int) -> tuple[tuple[int, int], ...]:
    """One piece a hash while tokens are left; what no hash covers is the entry's own."""
    pieces = []
    for name in [*hashes, -1 - index]:  # hashes count from 0 upwards
        size = min(length, block) if name >= 0 else length
        if size > 0:
            pieces.append((name, size))
        length -= size
    return tuple(pieces)


def _text(entry: Entry, key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"wants '{key}' (a text that is not empty)")
    return value


def _category(entry: Entry) -> str:
    return str(entry.get("category", ""))


def _length(entry: Entry, key: str) -> int | None:
    value = entry.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{key} must be a whole number of at least 1, got {value}")
    return value


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise ValueError("wants 'messages' (a list of objects with 'role' and 'content', not empty)")


FORMS: dict[str, Callable[[Entry], Prompt | None]] = {
    "spec_bench": _spec_bench,
    "sharegpt": _sharegpt,
    "humaneval": _humaneval,
    "custom": _custom,
    "openai_batch": _openai_batch,
}
