"""A load in numbers: what portrait and simulator work on. Text ends here; what is kept are lengths, names and ids.

Names of blocks are numbers that stand for a whole prefix, 16 tokens a block, so that equal prefixes have equal names:

    sequence  [ prompt ........................ | output ............ ]
    names     [ n0 | n1 | n2 | ...                          full blocks only ]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import jinja2
import numpy as np
import numpy.typing as npt

from threefold.advise.logged import BLOCK_TOKENS, Log, LoggedRequest
from threefold.text.template_worker import MAX_RENDERED_BYTES, OutputLimitError, Template

Names = npt.NDArray[np.uint64]

DEFAULT_OUTPUT_TOKENS = 128
"""Length of an answer that the log does not have."""
KIND_BLOCKS = 4
"""Requests whose first so many blocks agree are of one kind."""
KIND_SHARE = 0.02
"""… if at least this share of the log does."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class ReplayText(NamedTuple):
    """What a drafter is shown: ids of which only equality matters."""

    prompt: list[int]
    output: list[int]
    num_lost: int
    """Tokens by which every match is shorter than it was in the text: 1 when ids stand for pairs of tokens."""
    is_own: bool
    """True when ids mean the same in all requests, so that answers to others can be matched."""


@dataclass(slots=True)
class TraceRequest:
    """One request in numbers."""

    num_prompt_tokens: int
    num_output_tokens: int
    names: Names
    """Of the full blocks of prompt and, where known, output."""
    arrival_s: float | None = None
    text: ReplayText | None = None
    temperature: float | None = None
    is_structured: bool = False
    kind: str = ""
    is_length_known: bool = True
    """False when the answer is not in the log and its length is assumed."""


class TokenizerLike(Protocol):
    """What is needed of a tokenizer."""

    chat_template: str | None
    special_tokens: dict[str, str]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""


class Encoder:
    """Texts and chats to the ids that the model would read."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        source = tokenizer.chat_template
        self._template = Template(source, tokenizer.special_tokens) if source else None

    def text(self, text: str) -> list[int]:
        """Ids of a plain prompt; what is no Unicode becomes question marks."""
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode())

    def answer(self, text: str) -> list[int]:
        """Ids of an answer."""
        return self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Ids of a chat; one that the template refuses is joined by hand."""
        texts = [{"role": str(one.get("role", "user")), "content": content_of(one)} for one in messages]
        if self._template is not None:
            try:
                rendered = self._template.render(
                    {"messages": texts, "add_generation_prompt": True}, {}, MAX_RENDERED_BYTES
                )
                return self.answer(rendered)
            except (jinja2.TemplateError, OutputLimitError, TypeError, ValueError):
                pass  # the model refuses what the log's own model took: a system role, two turns of one speaker
        return self.text("\n".join(f"{one['role']}: {one['content']}" for one in texts))


def content_of(message: dict[str, Any]) -> str:
    """The text of a message, the text parts of a list joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def to_trace(log: Log, encoder: Encoder, *, output_tokens: int = DEFAULT_OUTPUT_TOKENS) -> list[TraceRequest]:
    """The log in numbers, in its order.

    Args:
        log: as read.
        encoder: of the model that the load is meant for.
        output_tokens: length of answers that the log does not have.
    """
    begins_s = min((one.arrival_s for one in log.requests if one.arrival_s is not None), default=0.0)
    trace = [_request(one, encoder, output_tokens, begins_s) for one in log.requests]
    prefixes = _prefix_kinds(trace)
    for request, logged in zip(trace, log.requests, strict=True):
        structured = "JSON or tools" if request.is_structured else ""
        request.kind = logged.category or structured or _kind(request, prefixes)
    return trace


def _request(logged: LoggedRequest, encoder: Encoder, output_tokens: int, begins_s: float) -> TraceRequest:
    prompt = prompt_ids(logged, encoder)
    output = logged.output_token_ids
    if output is None and logged.output is not None:
        output = encoder.answer(logged.output)
    num_prompt = len(prompt) if prompt is not None else max(logged.num_prompt_tokens or 1, 1)
    known = len(output) if output else logged.num_output_tokens
    return TraceRequest(
        num_prompt_tokens=num_prompt,
        num_output_tokens=max(known if known is not None else output_tokens, 1),
        names=_names_of(logged, prompt, output or [], num_prompt),
        arrival_s=None if logged.arrival_s is None else logged.arrival_s - begins_s,
        text=_replay_text(logged, prompt, output, num_prompt),
        temperature=logged.temperature,
        is_structured=logged.is_structured or is_json(logged.output),
        is_length_known=known is not None,
    )


def prompt_ids(logged: LoggedRequest, encoder: Encoder) -> list[int] | None:
    """The prompt as the model reads it; None = the log has its length at most."""
    if logged.prompt_token_ids is not None:
        return logged.prompt_token_ids
    if logged.messages is not None:
        return encoder.chat(logged.messages)
    return encoder.text(logged.prompt) if logged.prompt is not None else None


def _names_of(logged: LoggedRequest, prompt: list[int] | None, output: list[int], num_prompt: int) -> Names:
    if prompt is not None:
        return block_names([*prompt, *output])
    if logged.block_names is None:
        return np.zeros(0, dtype=np.uint64)
    parts = max(logged.block_tokens // BLOCK_TOKENS, 1)
    whole = np.array([_as_number(name) for name in logged.block_names], dtype=np.uint64)
    fine = _mixed(np.repeat(whole, parts) * np.uint64(parts) + np.tile(np.arange(parts, dtype=np.uint64), len(whole)))
    return fine if logged.block_tokens == BLOCK_TOKENS else fine[: num_prompt // BLOCK_TOKENS]


def _as_number(name: Any) -> int:
    if type(name) is int and 0 <= name < 1 << 63:
        return name
    return int.from_bytes(blake2b(repr(name).encode(), digest_size=8).digest())


def _replay_text(
    logged: LoggedRequest, prompt: list[int] | None, output: list[int] | None, num_prompt: int
) -> ReplayText | None:
    if prompt is not None and output:
        return ReplayText(prompt, output, 0, True)
    if logged.pairs is not None and 0 < num_prompt < len(logged.pairs):
        return ReplayText(logged.pairs[:num_prompt], logged.pairs[num_prompt:], 1, False)
    return None


def block_names(token_ids: Sequence[int]) -> Names:
    """Names of the full blocks of a sequence: sums of hashed blocks, each multiplied by its place, so order counts."""
    num_blocks = len(token_ids) // BLOCK_TOKENS
    blocks = np.array(token_ids[: num_blocks * BLOCK_TOKENS], dtype=np.int64).astype(np.uint64)
    places = np.arange(1, BLOCK_TOKENS + 1, dtype=np.uint64) * _MULTIPLIER
    hashed = (_mixed(blocks.reshape(num_blocks, BLOCK_TOKENS) + places)).sum(axis=1, dtype=np.uint64)
    at = _mixed(np.arange(num_blocks, dtype=np.uint64) + np.uint64(1)) | np.uint64(1)
    return _mixed(np.cumsum(_mixed(hashed) * at, dtype=np.uint64))


def _mixed(values: Names) -> Names:
    """Well spread 64-bit numbers (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def is_json(text: str | None) -> bool:
    """True when a whole answer is a JSON object or list."""
    stripped = (text or "").strip()
    if not (stripped[:1] in ("{", "[") and stripped[-1:] in ("}", "]")):
        return False
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return False
    return True


def _prefix_kinds(trace: Sequence[TraceRequest]) -> dict[int, str]:
    """Kinds by shared beginning: the name of the last of the first blocks, to a word for it."""
    counts = Counter(int(one.names[KIND_BLOCKS - 1]) for one in trace if len(one.names) >= KIND_BLOCKS)
    least = max(KIND_SHARE * len(trace), 3)
    shared = [name for name, count in counts.most_common(8) if count >= least]
    return {name: f"shared prefix {index}" for index, name in enumerate(shared, start=1)}


def _kind(request: TraceRequest, prefixes: dict[int, str]) -> str:
    if len(request.names) < KIND_BLOCKS:
        return "other"
    return prefixes.get(int(request.names[KIND_BLOCKS - 1]), "other")
