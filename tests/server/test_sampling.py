from __future__ import annotations

import pytest

from threefold.errors import InvalidRequestError
from threefold.server.sampling import chat_sampling, completion_sampling
from threefold.server.schema import ChatCompletionRequest, CompletionRequest

MESSAGES = [{"role": "user", "content": "Hi"}]
MODEL = {"temperature": 0.6, "top_k": 20.0, "top_p": 0.95}


def chat(defaults=MODEL, room=100, **fields):
    return chat_sampling(ChatCompletionRequest(messages=MESSAGES, **fields), defaults, room)


def text(defaults=MODEL, room=100, **fields):
    return completion_sampling(CompletionRequest(prompt="a", **fields), defaults, room)


def test_the_callers_value_comes_first_then_the_models_then_openais():
    params = chat(temperature=0.0, top_k=None)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.0, 20, 0.95, 0.0)
    assert type(params.top_k) is int
    assert chat(defaults={}).temperature == 1.0


def test_limits_by_kind():
    assert chat().max_tokens is None
    assert chat(max_tokens=5).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert text().max_tokens == 16
    assert text(room=3).max_tokens == 3
    assert text(max_tokens=50, room=3).max_tokens == 50  # asked for: the engine refuses it by name
    assert text(defaults={"max_tokens": 40}).max_tokens == 40
    assert chat(defaults={"max_tokens": 40}, room=30).max_tokens == 30


def test_logprobs_by_kind():
    assert chat().logprobs is None
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).logprobs == 3
    assert chat(logprobs=False, top_logprobs=0).logprobs is None
    assert text(logprobs=2).logprobs == 2
    assert text(logprobs=2).prompt_logprobs is None
    assert text(logprobs=2, echo=True).prompt_logprobs == 2
    for fields in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": -1}, {"logprobs": True, "top_logprobs": 21}):
        with pytest.raises(InvalidRequestError):
            chat(**fields)


def test_everything_is_carried_over():
    params = chat(
        n=3,
        stop="end",
        stop_token_ids=[7],
        bad_words=["no"],
        allowed_token_ids=[1, 2],
        logit_bias={"5": -100},
        seed=-1,
        ignore_eos=True,
        min_tokens=2,
        max_tokens=9,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        frequency_penalty=1,
        presence_penalty=-1.5,
        repetition_penalty=1.1,
        min_p=0.1,
        speculation={"max_tokens": 0},
    )
    assert (params.n, params.stop, params.stop_token_ids, params.bad_words) == (3, ("end",), (7,), ("no",))
    assert (params.allowed_token_ids, params.logit_bias, params.seed) == ((1, 2), {5: -100}, -1)
    assert (params.ignore_eos, params.min_tokens, params.max_tokens) == (True, 2, 9)
    assert (params.include_stop_str_in_output, params.skip_special_tokens) == (True, False)
    assert (params.frequency_penalty, params.presence_penalty) == (1, -1.5)
    assert (params.repetition_penalty, params.min_p, params.max_draft_tokens) == (1.1, 0.1, 0)


@pytest.mark.parametrize("key", ["", "-1", "1.0", "x", "١", "99999999999", " 1"])
def test_biased_tokens_must_be_ids(key):
    with pytest.raises(InvalidRequestError) as caught:
        chat(logit_bias={key: 1})
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs must be between 0 and 20, got 21"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "top_logprobs must be between 0 and 20, got -1"),
        (
            {"max_completion_tokens": 0},
            "max_completion_tokens",
            "max_completion_tokens must be between 1 and 100, which is what the prompt leaves of the context; got 0",
        ),
        ({"max_completion_tokens": 101}, "max_completion_tokens", "got 101"),
    ],
)
def test_a_fault_bears_the_name_that_the_caller_wrote(fields, param, says):
    with pytest.raises(InvalidRequestError, match=says) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_a_prompt_that_leaves_no_room_is_what_is_wrong():
    assert chat(room=0, max_completion_tokens=5).max_tokens == 5, "the engine says so, of the prompt"
