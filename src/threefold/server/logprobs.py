"""Log-probabilities in the three shapes that clients know: chat choices, text choices, prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from threefold.server.replies import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from threefold.step import TokenLogprobs

LOWEST_LOGPROB = -9999.0
"""In place of minus infinity, which JSON does not have."""


class TokenNames(Protocol):
    """What is needed of a tokenizer to show single tokens."""

    def id_to_bytes(self, token_id: int) -> bytes:
        """Bytes of one token; empty for an id without text."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids to text."""


class LogprobFormat:
    """Shows tokens.

    Args:
        tokenizer: gives tokens their text.
        as_ids: show tokens as `token_id:17`, for clients that need them unambiguous.
    """

    def __init__(self, tokenizer: TokenNames, *, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def chat(self, entries: Iterable[TokenLogprobs]) -> ChatLogprobs:
        """`logprobs` of a chat choice."""
        return ChatLogprobs([self._chat_entry(entry) for entry in entries])

    def completion(self, entries: Iterable[TokenLogprobs | int], offset: int) -> tuple[CompletionLogprobs, int]:
        """`logprobs` of a text choice; an entry that is a bare id is a prompt's first token, which has none.

        Args:
            entries: one a token.
            offset: characters before the first of them.

        Returns:
            The columns, and the offset after the last token.
        """
        columns = CompletionLogprobs([], [], [], [])
        for entry in entries:
            columns.text_offset.append(offset)
            if isinstance(entry, int):
                name, logprob, top = self._name(entry), None, None
            else:
                name, logprob = self._name(entry.token_id), _finite(entry.logprob)
                top = {self._name(token_id): _finite(value) for token_id, value in entry.top}
                top.setdefault(name, logprob)
            columns.tokens.append(name)
            columns.token_logprobs.append(logprob)
            columns.top_logprobs.append(top)
            offset += len(name)
        return columns, offset

    def prompt(self, entries: Iterable[TokenLogprobs]) -> PromptLogprobs:
        """`prompt_logprobs`: nothing for the first token, then the candidates of each by id."""
        shown: PromptLogprobs = [None]
        for entry in entries:
            candidates = {
                str(token_id): PromptLogprob(_finite(value), rank, self._name(token_id))
                for rank, (token_id, value) in enumerate(entry.top, start=1)
            }
            own = PromptLogprob(_finite(entry.logprob), entry.rank, self._name(entry.token_id))
            shown.append({str(entry.token_id): own} | candidates)
        return shown

    def _chat_entry(self, entry: TokenLogprobs) -> TokenLogprob:
        top = [
            TopLogprob(self._name(token_id), _finite(value), list(self._bytes(token_id)))
            for token_id, value in entry.top
        ]
        name, raw = self._name(entry.token_id), list(self._bytes(entry.token_id))
        return TokenLogprob(name, _finite(entry.logprob), raw, top)

    def _name(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        return self._bytes(token_id).decode("utf-8", "replace")

    def _bytes(self, token_id: int) -> bytes:
        raw = self._tokenizer.id_to_bytes(token_id)
        return raw or self._tokenizer.decode([token_id], skip_special_tokens=False).encode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
