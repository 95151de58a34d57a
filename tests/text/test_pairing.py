"""Which draft models speak their target's language."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, models

from threefold.text.pairing import difference
from threefold.text.tokenizer import Tokenizer
from threefold.text.tokenizer_parts import TokenizerParts


def tokenizer(words: list[str], special: tuple[str, ...] = ()) -> Tokenizer:
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    return Tokenizer(TokenizerParts(backend))


WORDS = [f"word{i}" for i in range(200)]


def test_the_same_vocabulary_and_a_longer_tail_are_fine() -> None:
    assert difference(tokenizer(WORDS), tokenizer(WORDS)) is None
    assert difference(tokenizer(WORDS), tokenizer([*WORDS, "tail1", "tail2"])) is None
    assert difference(tokenizer([*WORDS, "tail1"]), tokenizer(WORDS)) is None


def test_a_vocabulary_of_the_same_size_and_other_words_is_not() -> None:
    found = difference(tokenizer(WORDS), tokenizer([f"wort{i}" if i % 8 else f"word{i}" for i in range(200)]))

    assert found is not None
    assert "shares 12 % of token strings" in found


def test_the_same_words_at_other_ids_are_not() -> None:
    assert difference(tokenizer(WORDS), tokenizer(WORDS[::-1])) is not None


def test_a_renamed_reserved_token_is_fine_and_a_moved_special_token_is_not() -> None:
    renamed = [*WORDS[:-1], "reserved"]
    assert difference(tokenizer(WORDS), tokenizer(renamed)) is None
    moved = difference(
        tokenizer([*WORDS, "<end>", "<pad>"], ("<end>", "<pad>")),
        tokenizer([*WORDS, "<pad>", "<end>"], ("<end>", "<pad>")),
    )
    assert moved is not None
    assert "<end>" in moved
