"""What a request may ask, and what it is told when it may not."""

from __future__ import annotations

from typing import Any

import pytest

from threefold.errors import InvalidRequestError
from threefold.request import SamplingParams


@pytest.mark.parametrize(
    ("wish", "param", "words"),
    [
        ({"n": 17}, "n", "n must be between 1 and 16, got 17"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens", "min_tokens (4) must not exceed max_tokens (3)"),
        ({"min_tokens": -1}, "min_tokens", "min_tokens must be at least 0, got -1"),
        ({"temperature": float("nan")}, "temperature", "temperature must be between 0 and 100, got nan"),
        ({"top_p": 1.5}, "top_p", "top_p must be between 0 and 1, got 1.5"),
        ({"top_p": 0.0}, "top_p", "top_p must be greater than 0"),
        ({"top_k": -2}, "top_k", "top_k must be -1, 0 or positive, got -2"),
        ({"min_p": -0.1}, "min_p", "min_p must be between 0 and 1, got -0.1"),
        (
            {"repetition_penalty": 2e6},
            "repetition_penalty",
            "repetition_penalty must be between 0 and 1e+06, got 2000000.0",
        ),
        ({"presence_penalty": 3.0}, "presence_penalty", "presence_penalty must be between -2 and 2, got 3.0"),
        ({"logit_bias": {7: 101.0}}, "logit_bias", "logit_bias must be between -100 and 100, got 101.0"),
        ({"stop": ("",)}, "stop", "stop strings have 1 to 256 chars"),
        ({"stop": ("{}",) * 5}, "stop", "at most 4 stop strings"),
        ({"bad_words": ("a", "")}, "bad_words", "bad words must not be empty"),
        ({"allowed_token_ids": ()}, "allowed_token_ids", "allowed_token_ids must not be empty"),
        ({"logprobs": 21}, "logprobs", "logprobs must be between 0 and 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "prompt_logprobs must be between 0 and 20"),
        ({"seed": 2**63}, "seed", "seed must fit into a signed 64-bit integer"),
        ({"max_draft_tokens": -1}, "speculation", "max_tokens must not be negative"),
    ],
)
def test_a_wish_that_cannot_hold_is_named(wish: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        SamplingParams(**wish)

    assert words == str(error.value)
    assert param == error.value.param


def test_token_ids_outside_the_vocabulary_are_named() -> None:
    params = SamplingParams(logit_bias={3: 1.0, 50: 1.0}, stop_token_ids=(1,))
    params.check_vocabulary(51)

    with pytest.raises(InvalidRequestError, match="token id 50 is outside the vocabulary of 50") as error:
        params.check_vocabulary(50)

    assert "logit_bias" == error.value.param


def test_lists_and_single_texts_are_taken_for_what_they_mean() -> None:
    """Whoever writes stop="END" means one text, not three letters."""
    params = SamplingParams(stop="END", bad_words=["a", "b"], stop_token_ids=[7], allowed_token_ids=[1, 2])  # type: ignore[arg-type]
    assert (params.stop, params.bad_words, params.stop_token_ids) == (("END",), ("a", "b"), (7,))
    assert params.allowed_token_ids == (1, 2)
    with pytest.raises(InvalidRequestError, match="allowed_token_ids must not be empty"):
        SamplingParams(allowed_token_ids=[])  # type: ignore[arg-type]
