from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.request import FinishReason, SamplingParams
from threefold.text.answer import AnswerText, TextPiece

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def test_text_without_stop_strings(byte_tokenizer: Any) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams())
    ids = byte_tokenizer.encode("the€")
    assert answer.push(ids[:2]) == TextPiece("the", 2)
    assert answer.push(ids[2:], LENGTH) == TextPiece("€", len(ids) - 2)


def test_what_is_held_comes_with_the_end(byte_tokenizer: Any) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams(stop=("xyz",)))
    ids = byte_tokenizer.encode("axy€")
    assert answer.push(ids[:3]).text == "a"
    assert answer.push(ids[3:-1], LENGTH).text == "xy\ufffd"


def test_tokens_behind_a_stop_string_are_not_counted(byte_tokenizer: Any) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams(stop=("b",)))
    assert answer.push(byte_tokenizer.encode("xxbyy")) == TextPiece("xx", 3, "b")


def test_a_stop_string_before_the_stop_token_wins(byte_tokenizer: Any) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams(stop=("b",)))
    assert answer.push(byte_tokenizer.encode("ab<|end|>"), STOP) == TextPiece("a", 2, "b")


@pytest.mark.parametrize(("is_included", "text"), [(False, "a"), (True, "a.")])
def test_the_stop_token_shows_only_when_included(byte_tokenizer: Any, is_included: bool, text: str) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams(include_stop_str_in_output=is_included))
    assert answer.push(byte_tokenizer.encode("a."), STOP) == TextPiece(text, 2)


def test_the_end_of_sequence_is_no_text_even_when_special_tokens_are_shown(byte_tokenizer: Any) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams(skip_special_tokens=False))
    assert answer.push(byte_tokenizer.encode("<|start|>a<|end|>"), STOP).text == "<|start|>a"


def test_stop_strings_do_not_count_before_min_tokens(byte_tokenizer: Any) -> None:
    params = SamplingParams(stop=("b",), min_tokens=3)
    assert AnswerText(byte_tokenizer, params).push(byte_tokenizer.encode("bbbxb")) == TextPiece("bbbx", 5, "b")


def test_a_stop_string_that_begins_before_min_tokens_does_not_count(byte_tokenizer: Any) -> None:
    params = SamplingParams(stop=("xb",), min_tokens=1)
    assert AnswerText(byte_tokenizer, params).push(byte_tokenizer.encode("xbxb")) == TextPiece("xb", 4, "xb")


def test_a_stop_string_completed_by_the_last_flush(byte_tokenizer: Any) -> None:
    answer = AnswerText(byte_tokenizer, SamplingParams(stop=("\ufffd",)))
    ids = byte_tokenizer.encode("a€")[:-1]
    assert answer.push(ids, LENGTH) == TextPiece("a", len(ids), "\ufffd")


@given(st.text("ab€", max_size=12), st.integers(1, 5), st.integers(0, 4))
def test_the_number_of_tokens_a_step_does_not_matter(
    byte_tokenizer: Any, text: str, chunk: int, min_tokens: int
) -> None:
    params = SamplingParams(stop=("ab", "€b"), min_tokens=min_tokens)
    ids = byte_tokenizer.encode(text)

    def run(chunk: int) -> tuple[str, int, str | None]:
        answer, shown, num_tokens = AnswerText(byte_tokenizer, params), "", 0
        for start in range(0, len(ids), chunk):
            some = ids[start : start + chunk]
            piece = answer.push(some, LENGTH if start + chunk >= len(ids) else None)
            shown += piece.text
            num_tokens += piece.num_tokens
            if piece.stop is not None:
                return shown, num_tokens, piece.stop
        return shown, num_tokens, None

    assert run(chunk) == run(1)
