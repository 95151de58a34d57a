"""Token ids to text, a few at a time: the pieces put together are exactly the text of all ids decoded at once.

Knows nothing about stop strings and requests. A character whose bytes have not all come is held back. Byte-level
vocabularies (GPT-2's alphabet: Qwen, Llama 3, SmolLM) take the short way, bytes through an incremental UTF-8 decoder;
for all others a short window of ids is decoded anew with each token, since there a token's text depends on others.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol

MAX_WINDOW_TOKENS = 64  # of a window whose text ends in U+FFFD: by then it is no half character


class TokenDecoder(Protocol):
    """What is needed of a tokenizer to turn ids into text."""

    @property
    def is_byte_level(self) -> bool:
        """True when the text of ids is their bytes joined, as `id_to_bytes` gives them, read as UTF-8."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""

    @property
    def byte_token_ids(self) -> frozenset[int]:
        """Ids that stand for one byte each beside a vocabulary of characters; empty for byte-level ones."""

    def id_to_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id without text."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""


class Detokenizer(Protocol):
    """One answer's ids to text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that is certain after these further ids."""

    def flush(self) -> str:
        """Text still held back, an incomplete character as U+FFFD; for the end of the answer."""


def make_detokenizer(tokenizer: TokenDecoder, *, skip_special_tokens: bool) -> Detokenizer:
    """The detokenizer that fits the tokenizer, for one answer."""
    hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
    kind = ByteDetokenizer if tokenizer.is_byte_level else WindowDetokenizer
    return kind(tokenizer, hidden)


class ByteDetokenizer:
    """For byte-level vocabularies: bytes are looked up and decoded, nothing is looked at twice."""

    __slots__ = ("_hidden", "_id_to_bytes", "_rest")

    def __init__(self, tokenizer: TokenDecoder, hidden: frozenset[int]) -> None:
        self._id_to_bytes = tokenizer.id_to_bytes
        self._hidden = hidden
        self._rest = b""  # the first bytes of a character

    def push(self, token_ids: Sequence[int]) -> str:
        """Text of all whole characters so far that was not given before."""
        hidden, id_to_bytes = self._hidden, self._id_to_bytes
        data = self._rest + b"".join([id_to_bytes(i) for i in token_ids if i not in hidden])
        text, num_read = utf_8_decode(data, "replace", False)
        self._rest = data[num_read:]
        return text

    def flush(self) -> str:
        """An incomplete character as U+FFFD, else nothing."""
        text, _ = utf_8_decode(self._rest, "replace", True)
        self._rest = b""
        return text


class WindowDetokenizer:
    """For every other vocabulary: decodes a short window of ids and gives what came to its end.

        ids   [ given before, out of sight | shown | new ]
                                            0     num_shown
    The window begins with ids whose text was given last: a decoder drops the space before the first token it is given,
    so a token's text is right only behind another one. Runs of byte tokens are held until another token ends them, for
    one byte that fits nowhere makes the decoder give up the whole run.
    """

    __slots__ = ("_byte_token_ids", "_decode", "_hidden", "_ids", "_num_shown")

    def __init__(self, tokenizer: TokenDecoder, hidden: frozenset[int]) -> None:
        self._decode = tokenizer.decode
        self._byte_token_ids = tokenizer.byte_token_ids
        self._hidden = hidden
        self._ids: list[int] = []
        self._num_shown = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that later tokens can no longer change and that was not given before."""
        seen = [i for i in token_ids if i not in self._hidden]
        self._ids += seen
        if not seen or seen[-1] in self._byte_token_ids:
            return ""
        return self._take(is_last=False)

    def flush(self) -> str:
        """All text still held back."""
        return self._take(is_last=True)

    def _take(self, *, is_last: bool) -> str:
        before = self._decode(self._ids[: self._num_shown], skip_special_tokens=False)
        text = self._decode(self._ids, skip_special_tokens=False)[len(before) :]
        is_open = text.endswith("\ufffd") and len(self._ids) < MAX_WINDOW_TOKENS
        if not text or (is_open and not is_last):
            return ""
        del self._ids[: self._num_shown]
        self._num_shown = len(self._ids)
        return text
