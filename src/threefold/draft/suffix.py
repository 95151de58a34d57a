"""Drafts from the request's own text and from what was lately answered to others.

The idea is SuffixDecoding's (Oliaro et al., arXiv 2411.04975): agents and tools ask nearly the same again and again. In
place of suffix trees it searches the same hashed anchors as ngram.py: as fast, and simple to bound. Knows nothing about
models. Requests with different salts never see each other's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from threefold.draft.drafter import Draft, RowDrafts, RowTexts
from threefold.draft.match import BORDER, Ints, Longs
from threefold.draft.texts import NO_SLOTS, Beside, Texts, prepare

MEMORY_TOKENS = 1 << 18
"""Answered tokens remembered in all; about 5 MB."""


class _Memory:
    """Answers under one salt: what is new, and what was new before.

        older [ ....... full ....... ]  newer [ ..... grows ..... ]

    When the newer half is full it becomes the older one, and that is forgotten.

    Args:
        half_tokens: most tokens of a half, borders included.
        min_match: as Texts has it.
        max_match: the same.

    Attributes:
        texts: both halves.
        halves: [1 or 2] their slots, the newer first.
    """

    def __init__(self, half_tokens: int, min_match: int, max_match: int) -> None:
        self._half_tokens = half_tokens
        self._num_newer = self._num_older = 0
        self.texts = Texts(min_match, max_match)
        self.halves = np.array([self.texts.add(())])

    @property
    def num_tokens(self) -> int:
        return self._num_newer + self._num_older

    def add(self, token_ids: Ints) -> None:
        """Remember an answer, or as much of its end as fits."""
        token_ids = token_ids[-(self._half_tokens - 1) :]
        num_new = len(token_ids) + 1
        if self._num_newer + num_new > self._half_tokens:
            self._turn_over()
        newer = self.halves[0]
        self.texts.extend(newer, token_ids)
        self.texts.extend(newer, [BORDER])
        self.texts.catch_up(newer)  # what many answers leave is too much for the step that looks first
        self._num_newer += num_new

    def _turn_over(self) -> None:
        newer, *older = self.halves.tolist()
        for half in older:
            self.texts.drop(half)
        self.halves = np.array([self.texts.add(()), newer])
        self._num_newer, self._num_older = 0, self._num_newer


class _Request(NamedTuple):
    slot: int
    """Of its text."""
    num_given: int
    """Where in it the answer begins."""
    salt: str


class SuffixDrafter:
    """A drafter over each request's own text and a bounded memory of recent answers.

    Args:
        min_match: shortest match that may draft, tokens, at least 1.
        max_match: longest match told from longer ones, tokens, not less than min_match.
        memory_tokens: answered tokens remembered over all salts.
    """

    name = "suffix"

    def __init__(self, min_match: int, max_match: int, memory_tokens: int = MEMORY_TOKENS) -> None:
        self._limits = min_match, max_match
        self._memory_tokens = memory_tokens
        self._texts = Texts(min_match, max_match)
        self._requests: dict[int, _Request] = {}
        self._memories: dict[str, _Memory] = {}  # the salt that was answered longest ago first
        self._num_remembered = 0
        prepare()

    @property
    def num_remembered_tokens(self) -> int:
        """Answered tokens in memory, borders included; never more than memory_tokens."""
        return self._num_remembered

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:
        """Begin with these tokens; the answers that share the salt may help."""
        self.stop(request_id)
        self._requests[request_id] = _Request(self._texts.add(token_ids), len(token_ids), salt)

    def observe(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Append; the index catches up with the next proposal."""
        self._texts.extend(self._requests[request_id].slot, token_ids)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """What followed the longest match, the request's own text before others'; no match, no draft."""
        asked = {request_id: num_tokens for request_id, num_tokens in wanted.items() if num_tokens > 0}
        num_wanted = np.fromiter(asked.values(), np.int64, len(asked))
        return self._search(asked, num_wanted, None).by_request(asked)

    def draft_rows(self, request_ids: Sequence[int], num_wanted: Longs, texts: RowTexts) -> RowDrafts:
        """The same for rows, with whose texts the index catches up first."""
        return self._search(request_ids, num_wanted, texts)

    def stop(self, request_id: int) -> None:
        """Remember the answer, forget the request."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        answer = self._texts.text(request.slot)[request.num_given :]
        if len(answer):
            self._remember(answer, request.salt)
        self._texts.drop(request.slot)

    def _remember(self, answer: Ints, salt: str) -> None:
        memory = self._memories.pop(salt, None)
        if memory is None:
            memory = _Memory(self._memory_tokens // 2, *self._limits)
        self._num_remembered -= memory.num_tokens
        memory.add(answer)
        self._num_remembered += memory.num_tokens
        self._memories[salt] = memory
        while self._num_remembered > self._memory_tokens:
            self._num_remembered -= self._memories.pop(next(iter(self._memories))).num_tokens

    def _search(self, request_ids: Iterable[int], num_wanted: Longs, rows: RowTexts | None) -> RowDrafts:
        asked = [self._requests[request_id] for request_id in request_ids]
        slots = np.array([request.slot for request in asked], dtype=np.int64)
        places: dict[_Memory | None, list[int]] = {}
        for place, request in enumerate(asked):
            places.setdefault(self._memories.get(request.salt), []).append(place)
        besides = [self._beside(memory, np.array(some)) for memory, some in places.items()]
        return self._texts.search(slots, num_wanted, rows, besides)

    def _beside(self, memory: _Memory | None, places: Longs) -> Beside:
        """Where these requests, who share a salt or have no memory, may look besides in their own texts."""
        if memory is None:
            return Beside(places, self._texts, NO_SLOTS)
        return Beside(places, memory.texts, memory.halves)
