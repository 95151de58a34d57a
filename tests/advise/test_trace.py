import numpy as np
import pytest

from threefold.advise.logged import Log, LoggedRequest
from threefold.advise.trace import block_names, content_of, is_json, to_trace


def log_of(*requests):
    return Log(list(requests), {}, [])


def test_equal_prefixes_have_equal_names_and_only_they():
    first, second = list(range(64)), list(range(64))
    second[20] = 999
    a, b = block_names(first), block_names(second)
    assert len(a) == 4
    assert a[0] == b[0]
    assert not set(a[1:].tolist()) & set(b[1:].tolist())
    swapped = block_names(first[16:32] + first[:16])
    assert swapped[1] != a[1], "the order of blocks counts"
    assert len(block_names(first[:15])) == 0


def test_a_chat_in_numbers(encoder):
    chat = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "hello you"}]},
    ]
    (one,) = to_trace(log_of(LoggedRequest(messages=chat, output="good day to you")), encoder)
    assert (one.num_prompt_tokens, one.num_output_tokens) == (6, 4)
    assert one.text is not None
    assert one.text.output[-1] == one.text.prompt[-1], "both end with 'you'"


def test_lengths_that_nobody_knows_are_assumed(encoder):
    (one,) = to_trace(log_of(LoggedRequest(prompt="a b c")), encoder, output_tokens=9)
    assert (one.num_output_tokens, one.is_length_known, one.text) == (9, False, None)


def test_coarse_names_are_split_and_keep_what_is_shared(encoder):
    a, b = to_trace(
        log_of(
            LoggedRequest(num_prompt_tokens=1100, num_output_tokens=1, block_names=[5, 6, 7], block_tokens=512),
            LoggedRequest(num_prompt_tokens=1100, num_output_tokens=1, block_names=[5, 6, 8], block_tokens=512),
        ),
        encoder,
    )
    assert len(a.names) == 1100 // 16
    assert np.array_equal(a.names[:64], b.names[:64])
    assert not np.any(a.names[64:] == b.names[64:])


def test_pairs_are_split_at_the_prompt(encoder):
    (one,) = to_trace(log_of(LoggedRequest(num_prompt_tokens=2, num_output_tokens=3, pairs=[0, 1, 2, 1, 2])), encoder)
    assert one.text is not None
    assert (one.text.prompt, one.text.output, one.text.num_lost, one.text.is_own) == ([0, 1], [2, 1, 2], 1, False)


def test_kinds(encoder):
    rules = " ".join(f"rule{index}" for index in range(70))
    requests = [LoggedRequest(prompt=f"{rules} question {index}", output="x") for index in range(5)]
    requests += [
        LoggedRequest(prompt="p", output='{"a": 1}'),
        LoggedRequest(prompt="p", output="x", category="poems"),
        LoggedRequest(prompt="p", output="x"),
    ]
    kinds = [one.kind for one in to_trace(log_of(*requests), encoder)]
    assert kinds == ["shared prefix 1"] * 5 + ["JSON or tools", "poems", "other"]


def test_times_begin_at_zero(encoder):
    trace = to_trace(
        log_of(LoggedRequest(prompt="a", arrival_s=100.0), LoggedRequest(prompt="b", arrival_s=103.0)), encoder
    )
    assert [one.arrival_s for one in trace] == [0.0, 3.0]


def test_text_that_is_no_unicode_is_no_fault(encoder):
    (one,) = to_trace(log_of(LoggedRequest(prompt="a \ud800 b", output="\udfff")), encoder)
    assert one.num_prompt_tokens == 3


@pytest.mark.parametrize(
    ("text", "said"), [('{"a": 1}', True), (" [1] \n", True), ("{a}", False), ("", False), (None, False), ("3", False)]
)
def test_is_json(text, said):
    assert is_json(text) is said


def test_content_of_odd_messages():
    assert content_of({"content": None}) == content_of({}) == content_of({"content": [3]}) == ""
