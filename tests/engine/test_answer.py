from __future__ import annotations

import pytest

from threefold.engine.answer import Answer, merge
from threefold.engine.outputs import OutputDelta
from threefold.request import FinishReason, SamplingParams
from threefold.step import TokenDelta, TokenLogprobs
from threefold.testing.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
EOS = TOKENIZER.eos_token_ids[0]


def answer(**wishes: object) -> Answer:
    return Answer(1, TOKENIZER, SamplingParams(**wishes))  # type: ignore[arg-type]


def logprobs(token_ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id, -1.0, 1, ()) for token_id in token_ids]


def test_plain_tokens_become_a_piece() -> None:
    assert answer().push(list(b"ab"), 3, 1) == OutputDelta(1, "ab", list(b"ab"), num_drafted=3, num_accepted=1)


def test_all_that_a_delta_says_is_handed_on() -> None:
    delta = TokenDelta(9, [97, EOS], FinishReason.STOP, EOS, logprobs([97, EOS]), logprobs([1]), None, 32, 3, 1, 0.5)
    assert answer().push_delta(delta) == OutputDelta(
        1, "a", [97, EOS], logprobs([97, EOS]), logprobs([1]), FinishReason.STOP, None, 32, 3, 1, 0.5
    )


@pytest.mark.parametrize(("stop_token_ids", "reason"), [((), None), ((EOS,), EOS)])
def test_an_end_of_sequence_is_a_reason_only_when_it_was_asked_for(
    stop_token_ids: tuple[int, ...], reason: int | None
) -> None:
    ended = answer(stop_token_ids=stop_token_ids)
    piece = ended.push_delta(TokenDelta(9, [EOS], FinishReason.STOP, EOS))
    assert (piece.finish_reason, piece.stop_reason) == (FinishReason.STOP, reason)
    assert ended.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("finish_reason", [None, FinishReason.LENGTH])
def test_tokens_and_logprobs_behind_a_stop_string_are_dropped(finish_reason: FinishReason | None) -> None:
    ended = answer(stop=("bc",))
    token_ids = list(b"abcd")
    piece = ended.push_delta(TokenDelta(9, token_ids, finish_reason, logprobs=logprobs(token_ids)))
    assert (piece.text, piece.token_ids, piece.logprobs) == ("a", list(b"abc"), logprobs(list(b"abc")))
    assert (piece.finish_reason, piece.stop_reason) == (FinishReason.STOP, "bc")
    assert ended.finish_reason is FinishReason.STOP


def test_an_end_from_here_gives_what_was_held() -> None:
    ended = answer(stop=("bcd",))
    assert ended.push(list(b"abc")).text == "a"
    assert ended.end(FinishReason.ABORT) == OutputDelta(1, "bc", finish_reason=FinishReason.ABORT)


def test_merging_is_the_same_as_reading_one_by_one() -> None:
    first = OutputDelta(1, "a", [1], logprobs([1]), logprobs([5]), num_cached_tokens=16, num_drafted=1, queue_s=0.5)
    second = OutputDelta(1, "b", [2, 3], logprobs([2, 3]), None, FinishReason.STOP, "x", 0, 2, 1)
    merge(first, second)
    assert first == OutputDelta(
        1, "ab", [1, 2, 3], logprobs([1, 2, 3]), logprobs([5]), FinishReason.STOP, "x", 16, 3, 1, 0.5
    )
