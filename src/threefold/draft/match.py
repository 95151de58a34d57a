"""Where a text's end has occurred before, and what followed there.

Knows nothing about requests. Anchors of two lengths (the shortest match allowed, and one halfway to the longest) are
kept in hash tables with chains of earlier occurrences, as in Lempel-Ziv compressors; a candidate is then compared token
by token. So a token costs two table entries whatever the longest match, and a search costs the same whatever the length
of the text. Compiled by numba: a step may ask hundreds of rows, and on a card nothing else can happen meanwhile.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-any-return,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from threefold.draft.drafter import Draft

Ints = npt.NDArray[np.int32]

BORDER = -1
"""Where a text that was put together of others is joined; no match and no draft reaches across."""
MAX_CANDIDATES = 5
"""Earlier occurrences compared, most recent first."""
MAX_LINKS = 24
"""Links of a chain that are followed at most: some lead to other anchors with the same place in the table."""
VOTES = 2.0
"""Occurrences that the length of a match is worth when others agree or disagree about what follows."""
MOST = 0.97
"""A copy may end anywhere."""
LEAST_SURVIVAL = 0.02
"""Drafts end where less than this is left."""
LEAST_ROOM = 256
"""Tokens that a text has room for at first."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, which spreads consecutive numbers (Knuth)


class Found(NamedTuple):
    """The longest earlier occurrence of a text's end, and what is drafted from it."""

    length: int
    """Tokens that agree, counted backwards."""
    draft: Draft


def anchor_sizes(min_match: int, max_match: int) -> Ints:
    """Lengths of the anchors of a text, the longest first."""
    return np.array(sorted({min_match, (min_match + max_match) // 2}, reverse=True), dtype=np.int32)


class MatchIndex:
    """A growing text that can be searched for where another text's end, or its own, occurred before.

    Appending is cheap; the tables catch up when somebody searches.

    Args:
        min_match: shortest match that counts, tokens, at least 1.
        max_match: longest match that is told from longer ones, tokens, not less than min_match.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._max_match = max_match
        self._sizes = anchor_sizes(min_match, max_match)
        self._num_tokens = 0
        self._num_indexed = 0
        self._tokens = np.empty(0, dtype=np.int32)
        self._last: Ints = np.empty((0, 0), dtype=np.int32)  # [num_sizes, table] latest position of an anchor; 0 = none
        self._before: Ints = np.empty((0, 0), dtype=np.int32)  # [num_sizes, room] the position before a position

    def __len__(self) -> int:
        return self._num_tokens

    @property
    def token_ids(self) -> Ints:
        """The text so far."""
        return self._tokens[: self._num_tokens]

    def extend(self, token_ids: Sequence[int] | Ints) -> None:
        """Append."""
        start, end = self._num_tokens, self._num_tokens + len(token_ids)
        if end > len(self._tokens):
            self._grow(end)
        self._tokens[start:end] = token_ids
        self._num_tokens = end

    def find(self, text: MatchIndex, num_tokens: int) -> Found | None:
        """What followed the longest match of the end of text, the most recent among equals; None = no match."""
        num_known, num_indexed = self._num_tokens, self._num_indexed
        if not num_known:
            return None
        self._num_indexed = num_known
        length, token_ids, survival = find_match(
            self._tokens,
            num_indexed,
            num_known,
            self._sizes,
            self._last,
            self._before,
            text._tokens,
            text._num_tokens,
            self._max_match,
            num_tokens,
        )
        return Found(length, Draft(token_ids.tolist(), tuple(survival.tolist()))) if length else None

    def _grow(self, num_needed: int) -> None:
        room = max(LEAST_ROOM, 1 << (num_needed - 1).bit_length())
        tokens = np.empty(room, dtype=np.int32)
        tokens[: self._num_tokens] = self.token_ids
        self._tokens = tokens
        num_sizes = len(self._sizes)
        self._last = np.zeros((num_sizes, room), dtype=np.int32)
        self._before = np.zeros((num_sizes, room), dtype=np.int32)
        self._num_indexed = 0


def prepare() -> None:
    """Have the search compiled, or its compiled form read from the disk, before a step depends on it."""
    index = MatchIndex(1, 2)
    index.extend([1, 1])
    index.find(index, 1)


@numba.njit(cache=True, nogil=True)
def _place(tokens: Ints, end: int, size: int, num_places: int) -> int:
    """Where in a table of 2^n places the anchor before `end` belongs."""
    key = np.uint64(0)
    for position in range(end - size, end):
        key = (key ^ np.uint64(tokens[position])) * _MULTIPLIER
        key ^= key >> np.uint64(29)
    return int(key & np.uint64(num_places - 1))


@numba.njit(cache=True, nogil=True)
def _index(tokens: Ints, start: int, end: int, sizes: Ints, last: Ints, before: Ints) -> None:
    """Take in positions start to end, exclusive: what ends the text has nothing behind it yet."""
    for row in range(len(sizes)):
        for position in range(max(start, sizes[row]), end):
            place = _place(tokens, position, sizes[row], last.shape[1])
            before[row, position] = last[row, place]
            last[row, place] = position


@numba.njit(cache=True, nogil=True)
def _common(tokens: Ints, position: int, text: Ints, most: int) -> int:
    """Tokens before position that equal the end of text, at most `most`."""
    num_text = len(text)
    limit = min(most, position, num_text)
    for length in range(limit):
        if tokens[position - 1 - length] != text[num_text - 1 - length]:
            return length
    return limit


@numba.njit(cache=True, nogil=True)
def _candidates(tokens: Ints, size: int, last: Ints, before: Ints, text: Ints, max_match: int, at: Ints):
    """Put the ends of the longest matches into `at`, the most recent first. Returns their length and number."""
    longest = num_found = num_longest = 0
    position = last[_place(text, len(text), size, len(last))]
    for _ in range(MAX_LINKS):
        if position == 0 or num_found == MAX_CANDIDATES:
            break
        length = _common(tokens, position, text, max_match)
        if length >= size:
            num_found += 1
            if length > longest:
                longest, num_longest = length, 0
            if length == longest:
                at[num_longest] = position
                num_longest += 1
        position = before[position]
    return longest, num_longest


@numba.njit(cache=True, nogil=True)
def find_match(
    tokens: Ints,
    num_indexed: int,
    num_known: int,
    sizes: Ints,
    last: Ints,
    before: Ints,
    text: Ints,
    num_text: int,
    max_match: int,
    num_wanted: int,
):
    """Catch up with the index, then (length of the match, drafts, their survival); one call, as each has its price."""
    at = np.empty(MAX_CANDIDATES, dtype=np.int32)
    copied, survival = np.empty(num_wanted, dtype=np.int32), np.empty(num_wanted)
    length, num = put_match(
        tokens, num_indexed, num_known, sizes, last, before, text, num_text, max_match, num_wanted, at, copied, survival
    )
    return length, copied[:num], survival[:num]


@numba.njit(cache=True, nogil=True)
def put_match(
    tokens: Ints,
    num_indexed: int,
    num_known: int,
    sizes: Ints,
    last: Ints,
    before: Ints,
    text: Ints,
    num_text: int,
    max_match: int,
    num_wanted: int,
    at: Ints,
    copied: Ints,
    survival: npt.NDArray[np.float64],
):
    """The same with arrays to put drafts into, the last two. Returns (length of the match, length of the draft)."""
    _index(tokens, num_indexed, num_known, sizes, last, before)
    tokens, text = tokens[:num_known], text[:num_text]
    for row in range(len(sizes)):
        size = sizes[row]
        if num_text < size:
            continue
        length, num_longest = _candidates(tokens, size, last[row], before[row], text, max_match, at)
        if length:
            num_copied = _copy(tokens, at[:num_longest], length, num_wanted, copied, survival)
            return (length if num_copied else 0), num_copied
    return 0, 0


@numba.njit(cache=True, nogil=True)
def _copy(
    tokens: Ints, at: Ints, match_length: int, num_wanted: int, copied: Ints, survival: npt.NDArray[np.float64]
) -> int:
    """What followed the first of the occurrences, continued with itself where the known text ends, and its survival.

    A match of n tokens is trusted n / (n + 2), as much as two other occurrences' vote on what follows; an occurrence
    votes as long as it went the same way. Each accepted token makes the match longer by one. These are ranks more than
    probabilities: the controller learns what they come to. Returns how many tokens.
    """
    end, period = at[0], len(tokens) - at[0]
    num_others = len(at) - 1
    alive, num_copied = 1.0, 0
    for i in range(num_wanted):
        token_id = tokens[end + i] if i < period else copied[i - period]
        if token_id == BORDER:
            break
        length = match_length + i
        chance = length / (length + 2.0)
        if num_others:
            num_known = num_agreeing = 0
            for other in at[1 : 1 + num_others]:
                if other + i < len(tokens):
                    num_known += 1
                    if tokens[other + i] == token_id:
                        num_agreeing += 1
                        at[num_agreeing] = other
            chance = (VOTES * chance + num_agreeing) / (VOTES + num_known)
            num_others = num_agreeing
        alive *= min(chance, MOST)
        if alive < LEAST_SURVIVAL:
            break
        copied[i] = token_id
        survival[i] = alive
        num_copied += 1
    return num_copied
