"""A file to the texts that two models are compared on: plain text, or JSON lines in the forms that logs come in.

Where a line has an answer the answer is what is judged, with its prompt before it; else all of the prompt is. A broken
line is an error that names it: a figure from half a file would look like one from the whole. Knows no model but its
tokenizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from threefold.advise.forms import BatchHalf, read_entry
from threefold.advise.logged import LoggedRequest
from threefold.advise.trace import Encoder, prompt_ids
from threefold.bench.dataset_file import entries, read_file
from threefold.errors import ConfigError

_CHARACTERS_PER_TOKEN = 12
"""More than any text has: bounds what is encoded of a long one."""
_TEXT_SUFFIXES = (".txt", ".md", ".rst")


class Document(NamedTuple):
    """One text in tokens."""

    token_ids: list[int]
    num_context: int
    """Tokens at its beginning that are read and not judged."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was picked of a file."""

    documents: list[Document]
    num_answers: int
    """Documents whose answer is judged; of the others all is."""
    num_in_file: int
    num_skipped: int
    """Entries without any text, such as recordings of hashes."""


def read_sample(path: Path, encoder: Encoder, max_tokens: int, seed: int = 0, flag: str = "--data") -> Sample:
    """Read a file and pick documents from it, in an order of chance, until they have max_tokens.

    Args:
        path: plain text, JSON lines or a JSON list, gzipped or not.
        encoder: of the models that are compared.
        max_tokens: tokens to pick; the last text is cut there, unless it has an answer.
        seed: of the order.
        flag: what named the file, for messages.

    Raises:
        ConfigError: the file cannot be read, a line is broken, or nothing in it is text.
    """
    requests = _requests(read_file(path, flag), path, flag)
    order = list(range(len(requests)))
    random.Random(seed).shuffle(order)  # noqa: S311 (which texts, not a secret)
    documents: list[Document] = []
    num_tokens = num_skipped = 0
    for index in order:
        if num_tokens >= max_tokens:
            break
        document = _encoded(requests[index], encoder, max_tokens - num_tokens)
        if document is None or len(document.token_ids) < 2:
            num_skipped += 1
            continue
        documents.append(document)
        num_tokens += len(document.token_ids)
    if not documents:
        raise ConfigError(
            f"{flag} {path}: holds no text to compare on; plain text, or JSON lines with text, prompt and output, "
            "messages, conversations or request and response (recordings need --record-content text)"
        )
    return Sample(documents, sum(one.num_context > 0 for one in documents), len(requests), num_skipped)


def _requests(content: bytes, path: Path, flag: str) -> list[LoggedRequest]:
    if path.suffix in _TEXT_SUFFIXES or not _is_json(content):
        try:
            return [LoggedRequest(prompt=content.decode())]
        except UnicodeDecodeError as error:
            raise ConfigError(f"{flag} {path}: is neither JSON lines nor UTF-8 text: {error.reason}") from None
    found: list[LoggedRequest] = []
    halves: dict[str, BatchHalf] = {}
    for where, entry in entries(content, f"{flag} {path}"):
        try:
            found += _read(entry, halves)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return found + [half.joined() for half in halves.values()]


def _is_json(content: bytes) -> bool:
    """JSON lines begin with an object, a JSON list is one as a whole; a text may begin with a bracket, too."""
    first = content.lstrip()[:1]
    if first != b"[":
        return first == b"{"
    try:
        return isinstance(json.loads(content), list)
    except (ValueError, RecursionError):
        return False


def _read(entry: object, halves: dict[str, BatchHalf]) -> list[LoggedRequest]:
    """The requests of an entry; the halves of OpenAI's batches are joined."""
    if not isinstance(entry, dict):
        raise ValueError(f"wants an object, got a {type(entry).__name__}")
    if set(entry) & {"text"} and not set(entry) & {"prompt", "messages", "request"}:
        return [LoggedRequest(prompt=_text(entry))]
    _, found = read_entry(entry)
    if not isinstance(found, BatchHalf):
        return found
    known = halves.setdefault(found.custom_id, found)
    known.request, known.response = known.request or found.request, known.response or found.response
    return []


def _text(entry: dict[str, Any]) -> str:
    if not isinstance(entry["text"], str):
        raise ValueError(f"text must be a text, got a {type(entry['text']).__name__}")
    return entry["text"]


def _encoded(request: LoggedRequest, encoder: Encoder, max_tokens: int) -> Document | None:
    if request.prompt is not None:
        request.prompt = request.prompt[: _CHARACTERS_PER_TOKEN * max_tokens]
    prompt = prompt_ids(request, encoder) or []
    answer = request.output_token_ids
    if answer is None and request.output:
        answer = encoder.answer(request.output)
    if answer:
        return Document([*prompt, *answer], len(prompt))
    return Document(prompt[:max_tokens], 0) if prompt else None


class Piece(NamedTuple):
    """What is fed at once: a document, or a part of a long one."""

    token_ids: list[int]
    first: int
    """The first token that is judged, at least 1."""

    @property
    def num_judged(self) -> int:
        """Tokens whose prediction is compared."""
        return len(self.token_ids) - self.first


def cut(documents: Sequence[Document], window: int, bos_token_id: int | None) -> list[Piece]:
    """Documents as pieces of at most `window` tokens; one that begins with BOS gives pieces that all do.

    Of a context that leaves its answer no room the end is kept, at most half a window.
    """
    return [piece for document in documents for piece in _pieces(document, window, bos_token_id)]


def _pieces(document: Document, window: int, bos_token_id: int | None) -> Iterator[Piece]:
    head = document.token_ids[:1] if document.token_ids[0] == bos_token_id else []
    body, room = document.token_ids[len(head) :], window - len(head)
    context = max(document.num_context - len(head), 0)
    num_dropped = min(max(len(body) - room, 0), max(context - room // 2, 0))
    body, context = body[num_dropped:], context - num_dropped
    for start in range(0, len(body), room):
        piece = Piece(head + body[start : start + room], max(len(head) + context - start, 1))
        if piece.num_judged > 0:
            yield piece
