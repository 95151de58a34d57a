"""Texts that grow, all in a few arrays, so that one compiled call searches any number of them.

A step may ask hundreds of requests, and on a card nothing else can happen meanwhile. Knows nothing about requests: each
text has a slot.
"""
# numba brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: PLR0917 (compiled bodies take arrays one by one)

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from threefold.draft.drafter import RowDrafts, RowTexts
from threefold.draft.match import Ints, Longs, Tables, anchor_sizes, catch_up, put_longer

LEAST_ROOM = 256
"""Tokens that a text has room for at first."""
NO_SLOTS: Longs = np.zeros(0, dtype=np.int64)
_Number = TypeVar("_Number", bound=np.generic)


class Beside(NamedTuple):
    """Where some of the texts that are searched may find their ends besides in themselves."""

    places: Longs
    """Which of those that are searched, counted from 0."""
    texts: Texts
    slots: Longs
    """Of texts; where matches are as long, the text's own comes first and then the order here counts."""


class Texts:
    """Texts, each of which can be searched for where its end, or that of another, occurred before in it.

    Args:
        min_match: shortest match that counts, tokens, at least 1.
        max_match: longest match that is told from longer ones, tokens, not less than min_match.

    Attributes:
        tables: what the compiled search takes; others whenever there is more room.
    """

    def __init__(self, min_match: int, max_match: int) -> None:
        sizes = anchor_sizes(min_match, max_match)
        self._tokens: Ints = np.empty((0, LEAST_ROOM), dtype=np.int32)
        self._num_tokens: Longs = np.zeros(0, dtype=np.int64)
        self._num_indexed: Longs = np.zeros(0, dtype=np.int64)
        self._last: Ints = np.zeros((0, len(sizes), LEAST_ROOM), dtype=np.int32)
        self._before: Ints = np.zeros((0, len(sizes), LEAST_ROOM), dtype=np.int32)
        self._limits = sizes, max_match
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

    def text(self, slot: int) -> Ints:
        """[length] a text so far; a view."""
        return self._tokens[slot, : self._num_tokens[slot]]

    def extend(self, slot: int, token_ids: Sequence[int] | Ints) -> None:
        """Append to a text; the tables catch up when it is searched."""
        start = int(self._num_tokens[slot])
        end = start + len(token_ids)
        self._fit(end)
        self._tokens[slot, start:end] = token_ids
        self._num_tokens[slot] = end

    def catch_up(self, slot: int) -> None:
        """Let the tables know of all of a text now rather than when it is searched, which somebody waits for."""
        catch_up(self.tables, slot)

    def search(
        self, slots: Longs, num_wanted: Longs, rows: RowTexts | None = None, besides: Sequence[Beside] = ()
    ) -> RowDrafts:
        """What followed the longest earlier match of each text's end, the most recent among equals.

        Args:
            slots: [num_rows] whose.
            num_wanted: [num_rows] most tokens to copy of each, at least 1.
            rows: where the same texts are kept, in the same order, to catch up with first; None = nowhere else.
            besides: where else to look, all of those asked between them; () = nowhere.
        """
        num_rows = len(slots)
        most = int(num_wanted[num_wanted.argmax()]) if num_rows else 0  # a quarter of the time that max takes
        found = np.empty((num_rows, most), np.int32), np.empty((num_rows, most)), np.empty(num_rows, np.int64)
        kept = (self._tokens, self._num_tokens, slots) if rows is None else (*rows,)
        for places, texts, others in besides or ((np.arange(num_rows), self, NO_SLOTS),):
            while longest := _search(places, slots, num_wanted, kept, self.tables, texts.tables, others, found):
                self._fit(longest)
        return RowDrafts(*found)

    def _fit(self, num_tokens: int) -> None:
        """Room for a text as long as this."""
        if num_tokens > self._tokens.shape[1]:
            self._make_room(len(self._tokens), 1 << (num_tokens - 1).bit_length())

    def _make_room(self, num_slots: int, room: int) -> None:
        """More slots, or longer ones, for which the tables are made anew when texts are searched."""
        num_before, num_kept = len(self._tokens), len(self._tokens) if room == self._tokens.shape[1] else 0
        num_sizes = len(self._limits[0])
        self._tokens = _enlarged(self._tokens, num_before, num_slots, room)
        self._num_tokens = _enlarged(self._num_tokens, num_before, num_slots)
        self._num_indexed = _enlarged(self._num_indexed, num_kept, num_slots)
        self._last = _enlarged(self._last, num_kept, num_slots, num_sizes, room)
        self._before = _enlarged(self._before, num_kept, num_slots, num_sizes, room)
        self.tables: Tables = (
            self._tokens, self._num_tokens, self._num_indexed, self._last, self._before, *self._limits
        )  # fmt: skip
        self._free += range(num_slots - 1, num_before - 1, -1)


def _enlarged(array: npt.NDArray[_Number], num_kept: int, *shape: int) -> npt.NDArray[_Number]:
    """The first slots of an array, with zeros around them."""
    larger = np.zeros(shape, dtype=array.dtype)
    if num_kept:
        larger[(slice(num_kept), *map(slice, array.shape[1:]))] = array[:num_kept]
    return larger


def prepare() -> None:
    """Have the search compiled, or its compiled form read from the disk, before a step depends on it."""
    texts = Texts(1, 2)
    slot = texts.add([1, 1])
    texts.catch_up(slot)
    texts.search(np.array([slot]), np.ones(1, dtype=np.int64))


@numba.njit(cache=True, nogil=True)
def _search(
    places: Longs,
    slots: Longs,
    num_wanted: Longs,
    rows: tuple[Ints, Longs, Longs],
    texts: Tables,
    others: Tables,
    other_slots: Longs,
    found: tuple[Ints, npt.NDArray[np.float64], Longs],
) -> int:
    """Take over what is new in the rows, then search. Returns 0, or the longest text where there is no room for it."""
    row_tokens, row_lengths, row_ids = rows
    tokens, num_tokens = texts[0], texts[1]
    token_ids, survival, counts = found
    longest = 0
    for place in places:
        longest = max(longest, row_lengths[row_ids[place]])
    if longest > tokens.shape[1]:
        return longest
    lengths = np.zeros(len(slots), dtype=np.int64)
    for place in places:
        slot, row = slots[place], row_ids[place]
        end = row_lengths[row]
        for position in range(num_tokens[slot], end):
            tokens[slot, position] = row_tokens[row, position]
        num_tokens[slot] = end
        counts[place] = 0
    put_longer(places, texts, slots, texts, slots, num_wanted, lengths, token_ids, survival, counts)
    for other in other_slots:
        where = np.full(len(slots), other)
        put_longer(places, texts, slots, others, where, num_wanted, lengths, token_ids, survival, counts)
    return 0
