import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.draft.match import MAX_CANDIDATES, MatchIndex, draft_from


def index_of(tokens: list[int], min_match: int = 2, max_match: int = 8) -> MatchIndex:
    index = MatchIndex(min_match, max_match)
    index.tokens.extend(tokens)
    return index


def test_the_longest_match_wins_and_then_the_most_recent() -> None:
    index = index_of([1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4, 70, 8, 3, 4, 80, 1, 2, 3, 4])
    match = index.find(index.tokens)
    assert match is not None
    assert (match.length, index.tokens[match.end]) == (4, 70)
    assert [index.tokens[at] for at in match.others] == [50]


def test_a_miss_is_none() -> None:
    assert index_of([1, 2, 3, 4, 5]).find([1, 2, 3, 4, 5]) is None
    assert index_of([]).find([]) is None
    assert index_of([7]).find([7]) is None
    assert index_of([5, 1, 5]).find([5, 1, 5]) is None  # one token is too short


def test_a_loop_goes_on_for_ever() -> None:
    index = index_of([9, 1, 2, 3, 1, 2, 3, 1, 2])
    match = index.find(index.tokens)
    assert match is not None
    assert index.copy(match, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_occurrences_that_disagree_lower_survival() -> None:
    sure = index_of([1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2])
    unsure = index_of([1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 5, 0, 1, 2])
    drafts = []
    for index in (sure, unsure):
        match = index.find(index.tokens)
        assert match is not None
        drafts.append(draft_from(index, match, 4))
    assert drafts[0].survival[0] > 2 * drafts[1].survival[0]


def test_longer_matches_are_trusted_more() -> None:
    short, long = index_of([1, 2, 3, 0, 9, 1, 2]), index_of([1, 2, 3, 4, 5, 6, 0, 9, 1, 2, 3, 4, 5])
    found = [index.find(index.tokens) for index in (short, long)]
    assert found[0] is not None and found[1] is not None
    assert draft_from(long, found[1], 1).survival[0] > draft_from(short, found[0], 1).survival[0]


@given(st.lists(st.integers(0, 3), max_size=80), st.integers(1, 3), st.integers(0, 5), st.integers(1, 9))
def test_against_a_plain_search(tokens: list[int], min_match: int, more: int, num_tokens: int) -> None:
    max_match = min_match + more
    index = MatchIndex(min_match, max_match)
    for start in range(0, len(tokens), 7):  # grown in pieces, searched in between
        index.tokens.extend(tokens[start : start + 7])
        index.find(index.tokens)
    match = index.find(index.tokens)
    best = 0
    for end in range(1, len(tokens)):
        length = 0
        while length < min(max_match, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        best = max(best, length)
    if best < min_match:
        assert match is None
        return
    assert match is not None
    assert min_match <= match.length <= best
    assert tokens[match.end - match.length : match.end] == tokens[len(tokens) - match.length :]
    assert len(match.others) < MAX_CANDIDATES
    draft = draft_from(index, match, num_tokens)
    assert 1 <= len(draft.token_ids) == len(draft.survival) <= num_tokens
    assert all(
        1.0 > a >= b > 0.0 for a, b in zip(draft.survival, draft.survival[1:] + draft.survival[-1:], strict=True)
    )
    assert set(draft.token_ids) <= set(tokens)


def test_a_search_does_not_depend_on_the_length_of_the_text() -> None:
    """Counted, not timed: tokens looked at, through a list that counts its reads."""

    class Counting(list):
        reads = 0

        def __getitem__(self, key):
            Counting.reads += 1
            return super().__getitem__(key)

    reads = []
    for num_tokens in (1000, 20_000):
        index = MatchIndex(2, 8)
        index.tokens = Counting([i % 50 for i in range(num_tokens)])
        index.find(index.tokens)
        Counting.reads = 0
        index.find(index.tokens)
        reads.append(Counting.reads)
    assert reads[0] == pytest.approx(reads[1], abs=5)
