import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.draft.drafter import Draft
from threefold.draft.match import BORDER, put_longer
from threefold.draft.texts import Texts


class Found(NamedTuple):
    length: int
    draft: Draft


class Index:
    """One text that is searched for its own end, or for that of another."""

    def __init__(self, tokens: list[int], min_match: int = 2, max_match: int = 8) -> None:
        self.texts = Texts(min_match, max_match)
        self.slot = self.texts.add(tokens)
        self.other = self.texts.add([])

    def extend(self, tokens: list[int]) -> None:
        self.texts.extend(self.slot, tokens)

    def find(self, num_tokens: int, text: list[int] | None = None, length: int = 0) -> Found | None:
        """Where a match of so many tokens was found before."""
        if text is not None:
            self.texts.drop(self.other)
            self.other = self.texts.add(text)
        slots = np.array([self.slot if text is None else self.other])
        lengths, counts = np.array([length]), np.zeros(1, dtype=np.int64)
        token_ids, survival = np.full((1, num_tokens), -7, dtype=np.int32), np.full((1, num_tokens), -7.0)
        put_longer(
            np.zeros(1, dtype=np.int64),
            self.texts.tables,
            slots,
            self.texts.tables,
            np.array([self.slot]),
            np.array([num_tokens]),
            lengths,
            token_ids,
            survival,
            counts,
        )
        num = int(counts[0])
        assert set(token_ids[0, num:].tolist()) <= {-7}
        if not num:
            assert lengths[0] == length
            return None
        return Found(int(lengths[0]), Draft(token_ids[0, :num].tolist(), tuple(survival[0, :num].tolist())))


def drafted(index: Index, num_tokens: int) -> list[int]:
    found = index.find(num_tokens)
    assert found is not None
    return found.draft.token_ids


def survival_of(index: Index, num_tokens: int = 4) -> tuple[float, ...]:
    found = index.find(num_tokens)
    assert found is not None
    return found.draft.survival


def test_the_longest_match_wins_and_then_the_most_recent() -> None:
    index = Index([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4, 70, 8, 3, 4, 80, 1, 2, 3, 4])
    found = index.find(1)
    assert found is not None
    assert (found.length, found.draft.token_ids) == (4, [70])


def test_a_miss_is_none() -> None:
    for tokens in ([1, 2, 3, 4, 5], [], [7], [5, 1, 5]):  # in the last one token agrees, which is too short
        index = Index(tokens)
        assert index.find(4) is None


def test_a_loop_goes_on_for_ever() -> None:
    assert drafted(Index([9, 1, 2, 3, 1, 2, 3, 1, 2]), 7) == [3, 1, 2, 3, 1, 2, 3]


def test_occurrences_that_disagree_lower_survival() -> None:
    sure = Index([1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
    unsure = Index([1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 5, 0, 1, 2])
    assert survival_of(sure)[0] > 2 * survival_of(unsure)[0]


def test_one_that_disagreed_has_no_further_vote() -> None:
    """The other occurrence goes on with 4 and, behind that, with the same as the first."""
    alone = Index([1, 2, 3, 8, 9, 7, 6, 1, 2])
    beside = Index([1, 2, 4, 8, 9, 7, 5, 1, 2, 3, 8, 9, 7, 6, 1, 2])
    ratios = [survival[1] / survival[0] for survival in (survival_of(alone), survival_of(beside))]
    assert ratios[0] == pytest.approx(ratios[1])


def test_longer_matches_are_trusted_more() -> None:
    short, long = Index([1, 2, 3, 0, 9, 1, 2]), Index([1, 2, 3, 4, 5, 6, 0, 9, 1, 2, 3, 4, 5])
    assert survival_of(long, 1)[0] > survival_of(short, 1)[0]


def test_no_match_and_no_draft_reaches_across_a_border() -> None:
    assert drafted(Index([1, 2, 3, BORDER, 9, 1, 2]), 8) == [3]
    assert Index([1, 2, BORDER, 9, 1, 2]).find(8) is None
    assert Index([5, BORDER, 6, 7, 5, BORDER, 6]).find(8, [5, 6]) is None


def test_another_texts_end_is_found() -> None:
    found = Index([4, 5, 6, 7, 8]).find(2, [9, 9, 5, 6])
    assert found is not None
    assert (found.length, found.draft.token_ids) == (2, [7, 8])


def test_only_what_is_longer_than_what_was_found_counts() -> None:
    index = Index([4, 5, 6, 7, 8], max_match=3)
    assert index.find(2, [9, 5, 6], length=1) is not None
    assert index.find(2, [9, 5, 6], length=2) is None
    assert index.find(2, [4, 5, 6], length=3) is None  # nothing is told from longer ones
    assert index.find(2, [4, 5, 6], length=2) is not None


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 3), st.integers(0, 5), st.integers(1, 9))
def test_against_a_plain_search(tokens: list[int], min_match: int, more: int, num_tokens: int) -> None:
    max_match = min_match + more
    index = Index([], min_match, max_match)
    for start in range(0, len(tokens), 7):  # grown in pieces, searched in between
        index.extend(tokens[start : start + 7])
        index.find(num_tokens)
    assert index.texts.text(index.slot).tolist() == tokens
    found = index.find(num_tokens)
    lengths = {end: agreeing(tokens, end, max_match) for end in range(1, len(tokens))}
    best = max(lengths.values(), default=0)
    if best < min_match:
        assert found is None
        return
    assert found is not None
    assert min_match <= found.length <= best
    token_ids, survival = found.draft
    assert 1 <= len(token_ids) == len(survival) <= num_tokens
    assert all(1.0 > a >= b > 0.0 for a, b in zip(survival, survival[1:] + survival[-1:], strict=True))
    copies = [(tokens + [tokens[end + i % (len(tokens) - end)] for i in range(99)])[end:] for end in lengths]
    ends = [end for end, length in lengths.items() if length == found.length]
    assert any(copies[end - 1][: len(token_ids)] == token_ids for end in ends)


def agreeing(tokens: list[int], end: int, most: int) -> int:
    length = 0
    while length < min(most, end) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def test_tables_follow_a_text_that_outgrows_them() -> None:
    """Pieces of every size; what was said long ago is still found."""
    dice = random.Random(3)
    index = Index([701, 702, 703])
    while len(index.texts.text(index.slot)) < 5_000:
        index.extend([dice.randrange(700) for _ in range(dice.randrange(1, 400))])
        index.find(1)
    index.extend([701, 702])
    assert drafted(index, 1) == [703]
