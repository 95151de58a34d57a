from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.engine import wire
from threefold.engine.outputs import EngineInfo
from threefold.errors import InvalidRequestError, RequestTooLargeError
from threefold.metrics import EngineStats
from threefold.request import FinishReason, SamplingParams
from threefold.step import TokenDelta, TokenLogprobs

PARAMS = SamplingParams(
    logit_bias={5: -1.5}, allowed_token_ids=(1, 2), bad_words_token_ids=((3, 4), (5,)), seed=-(2**63), top_p=0.25
)
LOGPROBS = [TokenLogprobs(5, -0.5, 1, ((5, -0.5), (6, -1.0)))]
FULL_DELTA = TokenDelta(7, [1, 2], FinishReason.STOP, 2, LOGPROBS, LOGPROBS, "no", 32, 3, 1, 0.25)

TO_ENGINE = [
    wire.AddRequest([1, 2], [-5, 6], [1, 2, 3], PARAMS, 20, [0, 2], 12.5, -1, "sält"),
    wire.Abort([1, 2**63]),
    wire.GetStats(3),
    wire.ResetPrefixCache(4),
    wire.Shutdown(),
]
FROM_ENGINE = [
    wire.Ready(EngineInfo("m", 100, 10, ("m",), (2,), default_sampling={"top_p": 0.5}, tokenizer={"gguf": {"a": [1]}})),
    wire.StartFailed("ConfigError", "no"),
    wire.StepOutput([1], [[2, 3]], [4], [1], [FULL_DELTA, TokenDelta(8, [])]),
    wire.RequestRejected([1], "no", True),
    wire.RequestRejected([1], "later", False, 2.5),
    wire.Stats(3, EngineStats(num_running=3, accepted_per_position=[2, 1], iteration_tokens={4: 1})),
    wire.PrefixCacheReset(4, False),
    wire.EngineFault("dead"),
]


@pytest.mark.parametrize("message", TO_ENGINE)
def test_messages_to_the_engine_arrive_as_they_were(message: wire.Message) -> None:
    assert wire.decode_to_engine(wire.encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE)
def test_messages_from_the_engine_arrive_as_they_were(message: wire.Message) -> None:
    assert wire.decode_from_engine(wire.encode(message)) == message


def test_a_launch_is_one_line() -> None:
    launch = wire.Launch("a:b", {"text": "one\ntwo", "none": None}, "ipc:///tmp/x", 1)
    line = msgspec.json.encode(launch)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=wire.Launch) == launch


@pytest.mark.parametrize("message", FROM_ENGINE)
def test_the_engine_takes_no_messages_of_its_own_kind(message: wire.Message) -> None:
    with pytest.raises(msgspec.DecodeError):
        wire.decode_to_engine(wire.encode(message))


@given(st.binary(max_size=60))
def test_noise_is_refused(data: bytes) -> None:
    for decode in (wire.decode_to_engine, wire.decode_from_engine):
        try:
            message = decode(data)
        except msgspec.DecodeError:
            continue
        assert isinstance(message, wire.Message)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_numbers_over_64_bits_are_refused(value: int) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be carried"):
        wire.encode(wire.GetStats(value))


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be carried"):
        wire.encode(wire.EngineFault("\ud800"))


def test_no_message_is_over_the_limit() -> None:
    with pytest.raises(RequestTooLargeError, match=f"at most {wire.MAX_MESSAGE_BYTES}"):
        wire.encode(wire.EngineFault("x" * wire.MAX_MESSAGE_BYTES))


@pytest.mark.parametrize(
    "other",
    [
        TokenDelta(1, [2], FinishReason.LENGTH),
        TokenDelta(1, [2], queue_s=0.0),
        TokenDelta(1, [2], logprobs=[]),
        TokenDelta(1, [2], prompt_logprobs=[]),
        TokenDelta(1, [], error="no"),
    ],
)
def test_a_row_with_more_than_tokens_goes_whole(other: TokenDelta) -> None:
    step = wire.pack_step([TokenDelta(5, [6]), other])
    assert step == wire.StepOutput([5], [[6]], [], [], [other])


def test_draft_counts_go_along_when_there_are_any() -> None:
    step = wire.pack_step([TokenDelta(5, [6]), TokenDelta(7, [8, 9], num_drafted=3, num_accepted=1)])
    assert step == wire.StepOutput([5, 7], [[6], [8, 9]], [0, 3], [0, 1], [])


def test_a_plain_row_costs_few_bytes() -> None:
    deltas = [TokenDelta(1000 + row, [30_000 + row]) for row in range(256)]
    assert len(wire.encode(wire.pack_step(deltas))) < 256 * 10
