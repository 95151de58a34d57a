from __future__ import annotations

import itertools
from typing import Any

import pytest

from threefold.errors import ContextLengthError, InvalidRequestError
from threefold.request import SamplingParams
from threefold.text.prepare import ModelLimits, check_cache_salt, prepare, seed_source, seeds_for

LIMITS = ModelLimits(max_model_len=20, vocab_size=270, eos_token_ids=frozenset({7}))


def ready(tokenizer: Any, prompt: list[int], **wishes: Any) -> Any:
    counter = itertools.count(100)
    return prepare(prompt, SamplingParams(**wishes), LIMITS, tokenizer, lambda: next(counter))


def test_an_answer_without_max_tokens_fills_the_context(byte_tokenizer: Any) -> None:
    prepared = ready(byte_tokenizer, [1, 2, 3], max_tokens=None)
    assert prepared.max_total_tokens == 20
    assert prepared.params.max_tokens == 17


def test_max_tokens_counts_behind_the_prompt(byte_tokenizer: Any) -> None:
    assert ready(byte_tokenizer, [1, 2, 3], max_tokens=17).max_total_tokens == 20
    assert ready(byte_tokenizer, [1, 2, 3], max_tokens=5).max_total_tokens == 8


@pytest.mark.parametrize(
    ("prompt", "wishes", "error", "words"),
    [
        ([], {}, InvalidRequestError, "empty"),
        ([1] * 20, {}, ContextLengthError, "20 tokens; the model's context holds 20"),
        ([1] * 10, {"max_tokens": 11}, ContextLengthError, "10 tokens and max_tokens is 11, together 21"),
        ([1] * 10, {"max_tokens": 10**30}, ContextLengthError, "context holds 20"),
        ([1] * 10, {"max_tokens": None, "min_tokens": 11}, InvalidRequestError, "room for 10 tokens"),
        ([1, 270], {}, InvalidRequestError, "token id 270 is outside the vocabulary of 270"),
        ([-1], {}, InvalidRequestError, "token id -1"),
        ([1, -(2**63)], {}, InvalidRequestError, "token id -9223372036854775808 is outside"),
        ([2**70], {}, InvalidRequestError, "outside the vocabulary"),
        ([1, -(2**70)], {}, InvalidRequestError, "outside the vocabulary"),
        ([1], {"stop_token_ids": (270,)}, InvalidRequestError, "token id 270"),
        ([1], {"logit_bias": {-4: 1.0}}, InvalidRequestError, "token id -4"),
        ([1], {"allowed_token_ids": (1, 2**40)}, InvalidRequestError, "vocabulary"),
    ],
)
def test_what_cannot_run_is_refused(
    byte_tokenizer: Any, prompt: list[int], wishes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        ready(byte_tokenizer, prompt, **{"max_tokens": 1, **wishes})
    assert "\n" not in str(raised.value)


def test_no_text_reaches_the_engine(byte_tokenizer: Any) -> None:
    params = ready(byte_tokenizer, [1], stop=("x",), bad_words=("the",), n=3, seed=5).params
    assert (params.stop, params.bad_words, params.n, params.seed) == ((), (), 1, None)


def test_a_wish_that_is_ready_stays_as_it_is(byte_tokenizer: Any) -> None:
    params = SamplingParams(max_tokens=5, top_k=3)
    assert prepare([1], params, LIMITS, byte_tokenizer, lambda: 1).params is params


def test_bad_words_are_banned_at_a_beginning_and_behind_a_space(byte_tokenizer: Any) -> None:
    params = ready(byte_tokenizer, [1], bad_words=("the", "x"), bad_words_token_ids=((4, 5),)).params
    words = [byte_tokenizer.encode(text) for text in ("the", " the", "x", " x")]
    assert params.bad_words_token_ids == ((4, 5), *map(tuple, words))


def test_the_end_of_sequence_ends_unless_ignored(byte_tokenizer: Any) -> None:
    assert ready(byte_tokenizer, [1], stop_token_ids=(3,)).end_token_ids == {3, 7}
    assert ready(byte_tokenizer, [1], stop_token_ids=(3,), ignore_eos=True).end_token_ids == {3}


def test_a_top_k_beyond_the_vocabulary_is_the_vocabulary(byte_tokenizer: Any) -> None:
    assert ready(byte_tokenizer, [1], top_k=10**30).params.top_k == LIMITS.vocab_size
    assert ready(byte_tokenizer, [1], top_k=-1).params.top_k == -1


def test_each_answer_has_its_own_seed() -> None:
    draw = seed_source(0)
    drawn = seeds_for(SamplingParams(n=8), draw)
    assert len(set(drawn)) == 8
    assert drawn == seeds_for(SamplingParams(n=8), seed_source(0))
    assert drawn != seeds_for(SamplingParams(n=8), draw)
    assert seeds_for(SamplingParams(n=3, seed=5), draw) == [5, 6, 7]
    assert seeds_for(SamplingParams(n=2, seed=2**63 - 1), draw) == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("salt", ["x" * 257, "\ud800"])
def test_salts_that_cannot_be_carried(salt: str) -> None:
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        check_cache_salt(salt)
