"""Drafts from the request's own text and from what was lately answered to others.

The idea is SuffixDecoding's (Oliaro et al., arXiv 2411.04975): agents and tools ask nearly the same again and again. In
place of suffix trees it searches the same hashed anchors as ngram.py: as fast, and simple to bound. Knows nothing about
models. Requests with different salts never see each other's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threefold.draft.drafter import Draft
from threefold.draft.match import BORDER, Found, Ints, MatchIndex, prepare

MEMORY_TOKENS = 1 << 18
"""Answered tokens remembered in all; about 5 MB."""


class _Memory:
    """Answers under one salt: what is new, and what was new before.

        older [ ....... full ....... ]  newer [ ..... grows ..... ]

    When the newer half is full it becomes the older one, and that is forgotten.
    """

    def __init__(self, half_tokens: int, min_match: int, max_match: int) -> None:
        self._half_tokens = half_tokens
        self._limits = min_match, max_match
        self.halves = [MatchIndex(*self._limits), MatchIndex(*self._limits)]

    @property
    def num_tokens(self) -> int:
        return sum(len(half) for half in self.halves)

    def add(self, token_ids: Ints) -> None:
        """Remember an answer, or as much of its end as fits."""
        newer = self.halves[0]
        token_ids = token_ids[-(self._half_tokens - 1) :]
        if len(newer) + len(token_ids) + 1 > self._half_tokens:
            newer = MatchIndex(*self._limits)
            self.halves = [newer, self.halves[0]]
        newer.extend(token_ids)
        newer.extend([BORDER])


class _RequestText:
    """A request's own text, and where in it the answer begins."""

    def __init__(self, token_ids: Sequence[int], salt: str, min_match: int, max_match: int) -> None:
        self.text = MatchIndex(min_match, max_match)
        self.text.extend(token_ids)
        self.num_given = len(token_ids)
        self.salt = salt


class SuffixDrafter:
    """A drafter over each request's own text and a bounded memory of recent answers.

    Args:
        min_match: shortest match that may draft, tokens, at least 1.
        max_match: longest match told from longer ones, tokens, not less than min_match.
        memory_tokens: answered tokens remembered over all salts.
    """

    name = "suffix"

    def __init__(self, min_match: int, max_match: int, memory_tokens: int = MEMORY_TOKENS) -> None:
        self._min_match = min_match
        self._max_match = max_match
        self._memory_tokens = memory_tokens
        self._requests: dict[int, _RequestText] = {}
        self._memories: dict[str, _Memory] = {}  # the salt that was answered longest ago first
        self._num_remembered = 0
        prepare()

    @property
    def num_remembered_tokens(self) -> int:
        """Answered tokens in memory, borders included; never more than memory_tokens."""
        return self._num_remembered

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:
        """Begin with these tokens; the answers that share the salt may help."""
        self._requests[request_id] = _RequestText(token_ids, salt, self._min_match, self._max_match)

    def observe(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Append; the index catches up with the next proposal."""
        self._requests[request_id].text.extend(token_ids)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """What followed the longest match, the request's own text before others'; no match, no draft."""
        drafts = {}
        for request_id, num_tokens in wanted.items():
            draft = self._propose(self._requests[request_id], num_tokens) if num_tokens > 0 else None
            if draft is not None:
                drafts[request_id] = draft
        return drafts

    def stop(self, request_id: int) -> None:
        """Remember the answer, forget the request."""
        request = self._requests.pop(request_id, None)
        if request is None or len(request.text) == request.num_given:
            return
        memory = self._memories.pop(request.salt, None)
        if memory is None:
            memory = _Memory(self._memory_tokens // 2, self._min_match, self._max_match)
        self._num_remembered -= memory.num_tokens
        memory.add(request.text.token_ids[request.num_given :])
        self._num_remembered += memory.num_tokens
        self._memories[request.salt] = memory
        while self._num_remembered > self._memory_tokens:
            self._num_remembered -= self._memories.pop(next(iter(self._memories))).num_tokens

    def _propose(self, request: _RequestText, num_tokens: int) -> Draft | None:
        memory = self._memories.get(request.salt)
        best: Found | None = None
        for index in (request.text, *(memory.halves if memory is not None else ())):
            found = index.find(request.text, num_tokens)
            if found is not None and (best is None or found.length > best.length):
                best = found
        return None if best is None else best.draft
