from hypothesis import given
from hypothesis import strategies as st

from threefold.bench.prompt import WORDS, MadeUp

PIECES = st.lists(st.tuples(st.integers(-1000, 2**64), st.integers(1, 300)), min_size=1, max_size=5)


@given(PIECES, st.integers(0, 5))
def test_as_many_words_as_tokens_and_always_the_same(pieces: list[tuple[int, int]], seed: int) -> None:
    made_up = MadeUp(tuple(pieces), seed)
    words = made_up.text().split()
    assert len(words) == made_up.num_tokens
    assert made_up.text() == MadeUp(tuple(pieces), seed).text()
    assert set(words) <= set(WORDS)


@given(PIECES, PIECES, PIECES)
def test_equal_pieces_in_front_are_an_equal_beginning(front: list, one: list, other: list) -> None:
    a, b = MadeUp((*front, *one)).text().split(), MadeUp((*front, *other)).text().split()
    shared = sum(size for _, size in front)
    assert a[:shared] == b[:shared]


def test_a_shorter_piece_is_the_beginning_of_a_longer_one() -> None:
    assert MadeUp(((7, 512),)).text().startswith(MadeUp(((7, 100),)).text() + " ")


def test_other_names_and_other_seeds_are_other_words() -> None:
    texts = {MadeUp(((name, 50),), seed).text() for name in (-1, 0, 1, 2**64 - 1) for seed in (0, 1)}
    assert len(texts) == 6  # -1 and 2^64 - 1 are one name: hashes are read as 64 bits


def test_words_follow_the_tokenizer() -> None:
    assert len(MadeUp(((1, 512), (2, 100))).text(tokens_per_word=2.0).split()) == 256 + 50
    assert len(MadeUp(((1, 1),)).text(tokens_per_word=4.0).split()) == 1


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS)
