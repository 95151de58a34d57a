"""From what a client calls a prompt to token ids, inside the vocabulary."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from threefold.errors import InvalidRequestError
from threefold.server.limits import LONG_TEXT_CHARS, MAX_PROMPTS


class Tokenizer(Protocol):
    """What the server needs of text.tokenizer.Tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to ids."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids to text."""


class TextPrompt(NamedTuple):
    """A prompt and its text where the client sent one."""

    token_ids: list[int]
    text: str | None


class PromptTokenizer:
    """The model's tokenizer with the server's manners: long texts do not hold up the event loop, faults name the field.

    Args:
        tokenizer: the model's.
        vocab_size: width of the model's logits; ids beyond it would reach past the embedding.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    async def encode(self, text: str, *, add_special_tokens: bool, param: str, may_be_empty: bool = False) -> list[int]:
        """Text to ids.

        Raises:
            InvalidRequestError: the text makes no token, or cannot be encoded.
        """
        try:
            if len(text) > LONG_TEXT_CHARS:
                ids = await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens)
            else:
                ids = self._tokenizer.encode(text, add_special_tokens)
        except UnicodeError:
            raise InvalidRequestError("the text holds characters that are not valid Unicode", param=param) from None
        if not ids and not may_be_empty:
            raise InvalidRequestError("the prompt is empty: it must make at least one token", param=param)
        return ids

    def check(self, ids: list[int], param: str) -> list[int]:
        """The ids, if all are in the vocabulary.

        Raises:
            InvalidRequestError: empty, or an id outside [0, vocab_size).
        """
        if not ids:
            raise InvalidRequestError("the prompt is empty: it must hold at least one token id", param=param)
        lowest, highest = min(ids), max(ids)
        if lowest < 0 or highest >= self._vocab_size:
            bad = lowest if lowest < 0 else highest
            raise InvalidRequestError(f"token id {bad} is outside the vocabulary of {self._vocab_size}", param=param)
        return ids

    async def read(self, prompt: Any, *, add_special_tokens: bool) -> list[TextPrompt]:
        """The prompts of a completion request: a string, strings, token ids, or lists of token ids.

        Raises:
            InvalidRequestError: none of these, too many, empty, or an id outside the vocabulary.
        """
        if isinstance(prompt, str):
            return [await self._read_one(prompt, add_special_tokens)]
        if isinstance(prompt, list) and prompt:
            if _are_ids(prompt):
                return [TextPrompt(self.check(prompt, "prompt"), None)]
            if len(prompt) > MAX_PROMPTS:
                raise InvalidRequestError(f"at most {MAX_PROMPTS} prompts a request", param="prompt")
            if all(isinstance(one, str) for one in prompt) or all(isinstance(one, list) for one in prompt):
                return [await self._read_one(one, add_special_tokens) for one in prompt]
        raise InvalidRequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists", param="prompt"
        )

    async def _read_one(self, prompt: str | list[Any], add_special_tokens: bool) -> TextPrompt:
        if isinstance(prompt, str):
            ids = await self.encode(prompt, add_special_tokens=add_special_tokens, param="prompt")
            return TextPrompt(ids, prompt)
        if not _are_ids(prompt):
            raise InvalidRequestError("token ids must be integers", param="prompt")
        return TextPrompt(self.check(prompt, "prompt"), None)


def truncated(ids: list[int], limit: int | None, max_model_len: int) -> list[int]:
    """The last `limit` ids; None = all, -1 = as many as the context holds and still answer.

    Raises:
        InvalidRequestError: the limit is 0, or beyond the context.
    """
    if limit is None:
        return ids
    if limit == 0 or limit > max_model_len:
        raise InvalidRequestError(
            f"truncate_prompt_tokens must be -1 or between 1 and {max_model_len}", param="truncate_prompt_tokens"
        )
    return ids[-(max_model_len - 1 if limit == -1 else limit) :]


def _are_ids(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)  # bool is an int to isinstance
