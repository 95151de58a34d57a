"""Texts that grow, all in a few arrays, so that one compiled call searches any number of them.

    tokens                    [num_slots, room]
    last, before   [num_slots, num_sizes, room]   as match.py keeps them for one text

A step may ask hundreds of requests, and on a card nothing else can happen meanwhile. Knows nothing about requests: each
text has a slot.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt

from threefold.draft.drafter import Draft, RowDrafts, RowTexts
from threefold.draft.match import LEAST_ROOM, MAX_CANDIDATES, Ints, anchor_sizes, find_match, put_match

Longs = npt.NDArray[np.int64]


class Texts:
    """Texts, each of which can be searched for where its end occurred before in it.

    Args:
        min_match: shortest match that counts, tokens, at least 1.
        max_match: longest match that is told from longer ones, tokens, not less than min_match.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        self._max_match = max_match
        self._sizes = anchor_sizes(min_match, max_match)
        self._tokens: Ints = np.empty((0, LEAST_ROOM), dtype=np.int32)
        self._num_tokens: Longs = np.zeros(0, dtype=np.int64)
        self._free: list[int] = []
        self._make_room(1, LEAST_ROOM)

    def add(self, token_ids: Sequence[int]) -> int:
        """A text begins. Returns its slot."""
        if not self._free:
            self._make_room(2 * len(self._tokens), self._tokens.shape[1])
        slot = self._free.pop()
        self._last[slot] = 0
        self._num_tokens[slot] = self._num_indexed[slot] = 0
        self.extend(slot, token_ids)
        return slot

    def drop(self, slot: int) -> None:
        """Forget a text."""
        self._free.append(slot)

    def extend(self, slot: int, token_ids: Sequence[int]) -> None:
        """Append to a text; the tables catch up when it is searched."""
        start = int(self._num_tokens[slot])
        end = start + len(token_ids)
        if end > self._tokens.shape[1]:
            self._make_room(len(self._tokens), 1 << (end - 1).bit_length())
        self._tokens[slot, start:end] = token_ids
        self._num_tokens[slot] = end

    def search(self, slots: Sequence[int], num_wanted: Sequence[int]) -> list[Draft | None]:
        """What followed the longest earlier match of each text's end, the most recent among equals; None = no match.

        Args:
            slots: whose.
            num_wanted: most tokens to copy of each, at least 1.
        """
        if len(slots) == 1:
            return [self._search_one(slots[0], num_wanted[0])]
        most = max(num_wanted, default=0)
        token_ids = np.empty((len(slots), most), dtype=np.int32)
        survival = np.empty((len(slots), most))
        counts = _search(
            np.array(slots, dtype=np.int64),
            np.array(num_wanted, dtype=np.int64),
            *self._searched,
            token_ids,
            survival,
        )
        found = zip(token_ids.tolist(), survival.tolist(), counts.tolist(), strict=True)
        return [Draft(ids[:num], tuple(chances[:num])) if num else None for ids, chances, num in found]

    def search_rows(self, slots: Longs, num_wanted: Longs, rows: RowTexts) -> RowDrafts:
        """Catch up with texts that are kept elsewhere, which begin as those here, and search them.

        Args:
            slots: [num_rows] whose.
            num_wanted: [num_rows] most tokens to copy of each, at least 1.
            rows: the texts, in the same order.
        """
        most = int(num_wanted.max(initial=0))
        found = RowDrafts(np.empty((len(slots), most), np.int32), np.empty((len(slots), most)), np.empty_like(slots))
        longest = _search_rows(slots, num_wanted, *rows, *self._searched, *found)
        if longest:
            self._make_room(len(self._tokens), 1 << (longest - 1).bit_length())
            _search_rows(slots, num_wanted, *rows, *self._searched, *found)
        return found

    def _search_one(self, slot: int, num_wanted: int) -> Draft | None:
        """The same for one, without arrays to say which."""
        length, copied, chances = _search_slot(slot, num_wanted, *self._searched)
        return Draft(copied.tolist(), tuple(chances.tolist())) if length else None

    def _make_room(self, num_slots: int, room: int) -> None:
        """More slots, or longer ones; the tables are made anew when texts are searched."""
        before, num_before = self._tokens, self._num_tokens
        num_sizes = len(self._sizes)
        self._tokens = np.empty((num_slots, room), dtype=np.int32)
        self._tokens[: len(before), : before.shape[1]] = before
        self._num_tokens = np.zeros(num_slots, dtype=np.int64)
        self._num_tokens[: len(before)] = num_before
        self._num_indexed = np.zeros(num_slots, dtype=np.int64)
        self._last: Ints = np.zeros((num_slots, num_sizes, room), dtype=np.int32)
        self._before: Ints = np.zeros((num_slots, num_sizes, room), dtype=np.int32)
        self._searched = (  # what the compiled search takes
            self._tokens, self._last, self._before, self._num_tokens, self._num_indexed, self._sizes, self._max_match
        )  # fmt: skip
        self._free += range(num_slots - 1, len(before) - 1, -1)


def prepare() -> None:
    """Have the search compiled, or its compiled form read from the disk, before a step depends on it."""
    texts = Texts(1, 2)
    slots = [texts.add([1, 1]), texts.add([1, 1])]
    texts.search(slots, [1, 1])
    texts.search(slots[:1], [1])
    rows = RowTexts(np.ones((1, 2), dtype=np.int32), np.full(1, 2), np.zeros(1, dtype=np.int64))
    texts.search_rows(np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64), rows)


@numba.njit(cache=True, nogil=True)
def _search_slot(
    slot: int,
    num_wanted: int,
    tokens: Ints,
    last: Ints,
    before: Ints,
    num_tokens: Longs,
    num_indexed: Longs,
    sizes: Ints,
    max_match: int,
):
    """(length of the match, drafts, their survival)."""
    start, end = num_indexed[slot], num_tokens[slot]
    num_indexed[slot] = end
    text = tokens[slot]
    return find_match(text, start, end, sizes, last[slot], before[slot], text, end, max_match, num_wanted)


@numba.njit(cache=True, nogil=True)
def _search(
    slots: Longs,
    num_wanted: Longs,
    tokens: Ints,
    last: Ints,
    before: Ints,
    num_tokens: Longs,
    num_indexed: Longs,
    sizes: Ints,
    max_match: int,
    token_ids: Ints,
    survival: npt.NDArray[np.float64],
) -> Longs:
    """Put drafts into token_ids and survival. Returns how long each is."""
    counts = np.empty(len(slots), dtype=np.int64)
    at = np.empty(MAX_CANDIDATES, dtype=np.int32)
    for i in range(len(slots)):
        slot = slots[i]
        start, end, text = num_indexed[slot], num_tokens[slot], tokens[slot]
        num_indexed[slot] = end
        _, counts[i] = put_match(
            text, start, end, sizes, last[slot], before[slot], text, end, max_match, num_wanted[i], at, token_ids[i],
            survival[i]
        )  # fmt: skip
    return counts


@numba.njit(cache=True, nogil=True)
def _search_rows(
    slots: Longs,
    num_wanted: Longs,
    row_tokens: Ints,
    row_lengths: Longs,
    rows: Longs,
    tokens: Ints,
    last: Ints,
    before: Ints,
    num_tokens: Longs,
    num_indexed: Longs,
    sizes: Ints,
    max_match: int,
    token_ids: Ints,
    survival: npt.NDArray[np.float64],
    counts: Longs,
) -> int:
    """Take over what is new in the rows, then search. Returns 0, or the longest text where there is no room for it."""
    longest = 0
    for row in rows:
        longest = max(longest, row_lengths[row])
    if longest > tokens.shape[1]:
        return longest
    for i in range(len(rows)):
        slot, end = slots[i], row_lengths[rows[i]]
        for position in range(num_tokens[slot], end):
            tokens[slot, position] = row_tokens[rows[i], position]
        num_tokens[slot] = end
    counts[:] = _search(
        slots, num_wanted, tokens, last, before, num_tokens, num_indexed, sizes, max_match, token_ids, survival
    )
    return 0
