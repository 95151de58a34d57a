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

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

Tables = tuple[Ints, Longs, Longs, Ints, Ints, Ints, int]
"""Texts, each in a slot, and where their anchors are.

    tokens        [num_slots, room]              room is a power of two
    num_tokens    [num_slots]
    num_indexed   [num_slots]                    tokens that the two tables know of
    last          [num_slots, num_sizes, room]   latest position of the anchors that share a place; 0 = none
    before        [num_slots, num_sizes, room]   the position before a position
    sizes         [num_sizes]                    lengths of the anchors
    max_match     longest match that is told from longer ones

A plain tuple: its parts alone take longer to hand over, and a named one longer still.
"""
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
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, which spreads consecutive numbers (Knuth)


def anchor_sizes(min_match: int, max_match: int) -> Ints:
    """Lengths of the anchors of a text, the longest first."""
    return np.array(sorted({min_match, (min_match + max_match) // 2}, reverse=True), dtype=np.int32)


@numba.njit(cache=True, nogil=True)
def put_longer(
    places: Longs,
    texts: Tables,
    slots: Longs,
    others: Tables,
    other_slots: Longs,
    num_wanted: Longs,
    lengths: Longs,
    token_ids: Ints,
    survival: npt.NDArray[np.float64],
    counts: Longs,
) -> None:
    """Draft what followed the longest match of each text's end in another, where it is longer than what was found yet.

    Of matches that are as long the most recent counts. What is looked through catches up first.

    Args:
        places: [num_places] which of those below, counted from 0.
        texts: whose ends are looked for.
        slots: [num_asked] theirs.
        others: what is looked through, which may be the same texts.
        other_slots: [num_asked] where, for each.
        num_wanted: [num_asked] most tokens to draft.
        lengths: [num_asked] of the matches found yet, 0 = none. Set where there is a longer one, as the three below.
        token_ids: [num_asked, most] drafts.
        survival: [num_asked, most] theirs.
        counts: [num_asked] tokens drafted.
    """
    all_tokens, num_tokens, _, last, before, sizes, max_match = others
    at = np.empty(MAX_CANDIDATES, dtype=np.int32)
    for place in places:
        if lengths[place] == max_match:
            continue
        slot, other = slots[place], other_slots[place]
        catch_up(others, other)
        text, tokens = texts[0][slot][: texts[1][slot]], all_tokens[other][: num_tokens[other]]
        length, num_longest = _longest(tokens, sizes, last[other], before[other], text, max_match, at)
        if length > lengths[place]:
            num = _copy(tokens, at[:num_longest], length, num_wanted[place], token_ids[place], survival[place])
            if num:
                lengths[place], counts[place] = length, num


@numba.njit(cache=True, nogil=True)
def catch_up(texts: Tables, slot: int) -> None:
    """Know all anchors of a text before it is looked through."""
    all_tokens, num_tokens, num_indexed, last, before, sizes, _ = texts
    _index(all_tokens[slot][: num_tokens[slot]], num_indexed[slot], sizes, last[slot], before[slot])
    num_indexed[slot] = num_tokens[slot]


@numba.njit(cache=True, nogil=True)
def _place(tokens: Ints, end: int, size: int, num_places: int) -> int:
    """Where in a table of 2^n places the anchor before `end` belongs."""
    key = np.uint64(0)
    for position in range(end - size, end):
        key = (key ^ np.uint64(tokens[position])) * _MULTIPLIER
        key ^= key >> np.uint64(29)
    return int(key & np.uint64(num_places - 1))


@numba.njit(cache=True, nogil=True)
def _index(tokens: Ints, start: int, sizes: Ints, last: Ints, before: Ints) -> None:
    """Take in positions from start: what ends the text has nothing behind it yet."""
    for row in range(len(sizes)):
        for position in range(max(start, sizes[row]), len(tokens)):
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
def _longest(tokens: Ints, sizes: Ints, last: Ints, before: Ints, text: Ints, max_match: int, at: Ints):
    """The same by the longest anchors that occur."""
    for row in range(len(sizes)):
        if len(text) >= sizes[row]:
            length, num_longest = _candidates(tokens, sizes[row], last[row], before[row], text, max_match, at)
            if length:
                return length, num_longest
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
