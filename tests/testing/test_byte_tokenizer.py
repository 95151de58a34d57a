"""A token a byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from threefold.testing.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    ids = TOKENIZER.encode(text)

    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "<|begin|>" + text
    assert ids[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.encode(text, add_special_tokens=False) == ids[1:]
    assert b"".join(TOKENIZER.id_to_bytes(token_id) for token_id in ids[1:]) == text.encode()


def test_special_tokens_are_one_token_and_can_be_left_out() -> None:
    ids = TOKENIZER.encode("<|user|>hi<|end|>", add_special_tokens=False)

    assert len(ids) == 4
    assert ids[-1] in TOKENIZER.eos_token_ids
    assert TOKENIZER.decode(ids) == "hi"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == "<|user|>hi<|end|>"
    assert [TOKENIZER.is_special(token_id) for token_id in ids] == [True, False, False, True]


def test_every_id_has_a_word_and_bytes() -> None:
    words = [TOKENIZER.id_to_token(token_id) for token_id in range(TOKENIZER.vocab_size)]

    assert len(set(words)) == TOKENIZER.vocab_size
    assert (words[65], words[256]) == ("<0x41>", "<|begin|>")
    assert set(TOKENIZER.special_tokens.values()) <= set(words)
    for outside in (-1, TOKENIZER.vocab_size):
        assert TOKENIZER.id_to_token(outside) is None
        assert TOKENIZER.id_to_bytes(outside) == b""


def test_half_a_character_is_a_replacement() -> None:
    assert TOKENIZER.decode([0xC3, 0x41]) == "\ufffdA"
    assert TOKENIZER.chat_template == TOKENIZER.chat_templates["default"]
