"""A request made ready for the engine: checked against the model's limits, texts turned to ids, one seed an answer.

The engine behind it knows ids and numbers only. Every door (server, offline `LLM`) comes through here, so that all
refuse the same requests with the same words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from threefold.errors import ContextLengthError, InvalidRequestError
from threefold.request import SamplingParams, check_prompt_ids

MAX_CACHE_SALT_CHARS = 256


class TokenEncoder(Protocol):
    """What is needed of a tokenizer to turn text into ids."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request is checked against."""

    max_model_len: int
    """Most tokens a request may have, prompt and answer."""
    vocab_size: int
    """Token ids are below this; the model's own number, which may exceed the tokenizer's."""
    eos_token_ids: frozenset[int]
    """Tokens that end an answer unless `ignore_eos`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the engine is asked."""

    params: SamplingParams
    """The wish in numbers: no text left in it, n is 1, and the seed is in `seeds`."""
    seeds: list[int]
    """One an answer."""
    max_total_tokens: int
    """Prompt and output tokens at which an answer ends by length."""
    end_token_ids: frozenset[int]
    """Tokens that end an answer."""


def prepare(
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    limits: ModelLimits,
    tokenizer: TokenEncoder,
    draw_seed: Callable[[], int],
) -> Prepared:
    """Check a request and turn it into what the engine understands.

    Raises:
        InvalidRequestError: an empty prompt, a token id outside the vocabulary, a number that cannot hold.
        ContextLengthError: the prompt, or prompt and max_tokens, are longer than the context.
    """
    _check_prompt(prompt_token_ids, limits)
    max_total_tokens = _max_total_tokens(len(prompt_token_ids), params, limits)
    ready = _settled(
        params,
        n=1,
        max_tokens=max_total_tokens - len(prompt_token_ids),
        top_k=min(params.top_k, limits.vocab_size),
        stop=(),
        bad_words=(),
        bad_words_token_ids=params.bad_words_token_ids + bad_words_to_ids(params.bad_words, tokenizer),
        seed=None,
    )
    ready.check_vocabulary(limits.vocab_size)
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else limits.eos_token_ids)
    return Prepared(ready, seeds_for(params, draw_seed), max_total_tokens, ends)


def _settled(params: SamplingParams, **values: Any) -> SamplingParams:
    """The wish with these values; itself where it has them, for another is checked all over again."""
    if all(getattr(params, name) == value for name, value in values.items()):
        return params
    return replace(params, **values)


def check_cache_salt(cache_salt: str) -> None:
    """Raise InvalidRequestError for a salt that is too long or no Unicode."""
    if len(cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequestError(f"cache_salt has at most {MAX_CACHE_SALT_CHARS} characters", param="cache_salt")
    if any("\ud800" <= char <= "\udfff" for char in cache_salt):
        raise InvalidRequestError("cache_salt must be valid Unicode", param="cache_salt")


def _check_prompt(prompt_token_ids: Sequence[int], limits: ModelLimits) -> None:
    if not prompt_token_ids:
        raise InvalidRequestError("the prompt is empty; at least one token is needed", param="prompt")
    if len(prompt_token_ids) >= limits.max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(prompt_token_ids)} tokens; the model's context holds {limits.max_model_len}, "
            "of which at least one is for the answer",
            param="prompt",
        )
    check_prompt_ids(prompt_token_ids, limits.vocab_size)


def _max_total_tokens(num_prompt_tokens: int, params: SamplingParams, limits: ModelLimits) -> int:
    room = limits.max_model_len - num_prompt_tokens
    if params.max_tokens is not None and params.max_tokens > room:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {params.max_tokens}, together "
            f"{num_prompt_tokens + params.max_tokens}; the model's context holds {limits.max_model_len}",
            param="max_tokens",
        )
    if params.min_tokens > room:
        raise InvalidRequestError(
            f"min_tokens is {params.min_tokens}, but the context has room for {room} tokens after the prompt",
            param="min_tokens",
        )
    return num_prompt_tokens + (room if params.max_tokens is None else params.max_tokens)


def bad_words_to_ids(words: Sequence[str], tokenizer: TokenEncoder) -> tuple[tuple[int, ...], ...]:
    """Each word's ids as it stands inside a text, behind a space, and at its beginning."""
    spellings = [spelling for word in words for spelling in (word, " " + word)]
    ids = (tuple(tokenizer.encode(spelling, add_special_tokens=False)) for spelling in spellings)
    return tuple(dict.fromkeys(word_ids for word_ids in ids if word_ids))


def seeds_for(params: SamplingParams, draw_seed: Callable[[], int]) -> list[int]:
    """Seeds of the n answers: seed, seed + 1, … when one was given (kept within 64 bits), else drawn one by one."""
    if params.seed is None:
        return [draw_seed() for _ in range(params.n)]
    return [(params.seed + index + 2**63) % 2**64 - 2**63 for index in range(params.n)]


def seed_source(seed: int) -> Callable[[], int]:
    """Draws seeds for requests that bring none, the same ones in the same order for the same `seed`."""
    source = random.Random(seed)  # noqa: S311 - repeatable sampling is the point, nothing secret hangs on it
    return lambda: source.getrandbits(63)
