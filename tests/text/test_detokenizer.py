from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.text.detokenizer import make_detokenizer

TEXTS = [
    "the  the\n\nthe",
    "naïve café €100 😀😀 日本語 👩‍👩‍👧",
    " a ab  abé\tab ",
    "\u0e01\u0e33\u0e41\u0e1e\u0e07",
    "",
]


def stream(tokenizer: Any, ids: list[int], skip: bool, chunk: int = 1) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip)
    pieces = [detokenizer.push(ids[start : start + chunk]) for start in range(0, len(ids), chunk)]
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_whole(tokenizer: Any, text: str, chunk: int) -> None:
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids, skip=True, chunk=chunk)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


@given(data=st.data(), skip=st.booleans(), chunk=st.integers(1, 4))
def test_any_ids_give_the_text_of_all_at_once(tokenizer: Any, data: st.DataObject, skip: bool, chunk: int) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(stream(tokenizer, ids, skip, chunk)) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_runs_of_bytes_and_spaces_and_special_tokens(spaced_tokenizer: Any, data: st.DataObject) -> None:
    euro = [3 + byte for byte in "€".encode()]
    bits = st.sampled_from([*euro, 3 + 10, 3 + 255, 1, 2, *range(259, 267)])
    parts = data.draw(st.lists(st.one_of(bits.map(lambda i: [i]), st.just(euro)), max_size=20))
    ids = [i for part in parts for i in part]
    for skip in (True, False):
        assert "".join(stream(spaced_tokenizer, ids, skip)) == spaced_tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_character_is_held_back_until_its_last_byte(byte_tokenizer: Any) -> None:
    ids = byte_tokenizer.encode("a€b")
    assert stream(byte_tokenizer, ids, skip=True) == ["a", "", "€", "b", ""]


def test_an_incomplete_character_at_the_end_shows_as_replaced(tokenizer: Any) -> None:
    ids = tokenizer.encode("a😀")[:-1]
    assert "".join(stream(tokenizer, ids, skip=True)) == tokenizer.decode(ids)
    assert stream(tokenizer, ids, skip=True)[-1].endswith("\ufffd")


def test_special_tokens_are_left_out_or_shown(byte_tokenizer: Any) -> None:
    ids = byte_tokenizer.encode("the<|end|>the")
    assert "".join(stream(byte_tokenizer, ids, skip=True)) == "thethe"
    assert "".join(stream(byte_tokenizer, ids, skip=False)) == "the<|end|>the"


def test_a_special_token_costs_the_next_word_no_space(spaced_tokenizer: Any) -> None:
    ab = spaced_tokenizer.encode("ab")
    assert "".join(stream(spaced_tokenizer, [*ab, 2, *ab], skip=True)) == "ab ab"


def test_ids_beyond_the_tokenizer_have_no_text(byte_tokenizer: Any) -> None:
    assert stream(byte_tokenizer, [byte_tokenizer.vocab_size + 5], skip=True) == ["", ""]


def test_a_text_of_replacement_characters_is_not_held_for_ever(spaced_tokenizer: Any) -> None:
    class Stubborn:
        is_byte_level = False
        special_ids: frozenset[int] = frozenset()
        byte_token_ids: frozenset[int] = frozenset()

        def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
            return "\ufffd" * len(token_ids)

    pieces = stream(Stubborn(), list(range(1000)), skip=True)
    assert "".join(pieces) == "\ufffd" * 1000
    assert sum(1 for piece in pieces if piece) > 5
