"""Where a text's end has occurred before, and what followed there.

Knows nothing about requests. Anchors of two lengths (the shortest match allowed, and one halfway to the longest) are
kept in hash tables with chains of earlier occurrences, as in Lempel-Ziv compressors; a candidate is then compared token
by token. So a token costs two table entries whatever the longest match, and a search costs the same whatever the length
of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from threefold.draft.drafter import Draft

MAX_CANDIDATES = 5
"""Earlier occurrences compared, most recent first."""
VOTES = 2.0
"""Occurrences that the length of a match is worth when others agree or disagree about what follows."""
MOST = 0.97
"""A copy may end anywhere."""
LEAST_SURVIVAL = 0.02
"""Drafts end where less than this is left."""


class Match(NamedTuple):
    """An earlier occurrence of a text's end."""

    length: int
    """Tokens that agree, counted backwards."""
    end: int
    """Position in the index's tokens of what followed."""
    others: tuple[int, ...]
    """Positions behind other occurrences that are as long."""


class _Anchors:
    """Every position, by the `size` tokens before it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._last: dict[int, int] = {}
        self._before: list[int] = []

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Take in positions up to `end`, exclusive."""
        size, last, before = self.size, self._last, self._before
        for position in range(len(before) + size, end):
            key = hash(tuple(tokens[position - size : position]))
            before.append(last.get(key, 0))
            last[key] = position

    def latest(self, text: Sequence[int]) -> int:
        """Most recent position behind the same tokens as the end of text; 0 = none. Hashes may collide."""
        return self._last.get(hash(tuple(text[-self.size :])), 0)

    def earlier(self, position: int) -> int:
        """The position before it with the same anchor; 0 = none."""
        return self._before[position - self.size]


class MatchIndex:
    """A growing text that can be searched for where another text's end, or its own, occurred before.

    Appending is free; the tables catch up when somebody searches.

    Args:
        min_match: shortest match that counts, tokens.
        max_match: longest match that is told from longer ones, tokens.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self.tokens: list[int] = []
        self._max_match = max_match
        self._anchors = [_Anchors(size) for size in sorted({min_match, (min_match + max_match) // 2}, reverse=True)]

    def find(self, text: Sequence[int]) -> Match | None:
        """The longest match of the end of text, the most recent among equals."""
        for anchors in self._anchors:
            # What ends the text itself has nothing behind it yet, so the last position is left out.
            anchors.extend(self.tokens, len(self.tokens))
            if len(text) >= anchors.size:
                match = self._best(text, anchors)
                if match is not None:
                    return match
        return None

    def copy(self, match: Match, num_tokens: int) -> list[int]:
        """What followed, continued with itself where the known text ends: a loop goes on for ever."""
        copied = self.tokens[match.end : match.end + num_tokens]
        period = len(self.tokens) - match.end
        while len(copied) < num_tokens:
            copied.append(copied[-period])
        return copied

    def _best(self, text: Sequence[int], anchors: _Anchors) -> Match | None:
        found: list[tuple[int, int]] = []
        position = anchors.latest(text)
        while position and len(found) < MAX_CANDIDATES:
            length = self._common(text, position)
            if length >= anchors.size:
                found.append((length, position))
            position = anchors.earlier(position)
        if not found:
            return None
        longest, end = max(found)
        return Match(longest, end, tuple(at for length, at in found if length == longest and at != end))

    def _common(self, text: Sequence[int], position: int) -> int:
        """Tokens before position that equal the end of text, at most max_match."""
        tokens = self.tokens
        limit = min(self._max_match, position, len(text))
        if tokens[position - limit : position] == text[-limit:]:
            return limit
        for length in range(limit):
            if tokens[position - 1 - length] != text[-1 - length]:
                return length
        return limit


def draft_from(index: MatchIndex, match: Match, num_tokens: int) -> Draft:
    """The match's continuation with its survival.

    A match of n tokens is trusted n / (n + 2), as much as two other occurrences' vote on what follows; an occurrence
    votes as long as it went the same way. Each accepted token makes the match longer by one. These are ranks more than
    probabilities: the controller learns what they come to.
    """
    token_ids = index.copy(match, num_tokens)
    tokens, others = index.tokens, match.others
    survival = []
    alive = 1.0
    for i, token_id in enumerate(token_ids):
        length = match.length + i
        chance = length / (length + 2.0)
        if others:
            known = [at for at in others if at + i < len(tokens)]
            others = tuple(at for at in known if tokens[at + i] == token_id)
            chance = (VOTES * chance + len(others)) / (VOTES + len(known))
        alive *= min(chance, MOST)
        if alive < LEAST_SURVIVAL:
            break
        survival.append(alive)
    return Draft(token_ids[: len(survival)], tuple(survival))
