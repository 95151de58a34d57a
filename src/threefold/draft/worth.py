"""What each request's drafts were worth lately, and who is therefore asked.

Knows nothing about costs: what is too little is said from outside. Plain dictionaries, gone through by as few
operations of Python as can be: with hundreds of rows every one of them shows in a step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

ASK_AGAIN_STEPS = 16
"""A request whose drafts never come to anything is asked again this often."""
MEMORY_ASKS = 24.0
"""Askings over which a request's worth is averaged."""
RECENT_ASKS = 6.0
"""… and so many over which drafts that passed are."""
NEVER = -math.inf
"""The worth of a request that may not be asked."""
ANY = -1.0
"""Below every other worth."""


class RequestWorth:
    """Tokens that asking each request brings beyond what verifying takes at this load.

    Args:
        max_draft: longest draft ever asked for, tokens.
    """

    def __init__(self, max_draft: int) -> None:
        self._max_draft = max_draft
        self._worth: dict[int, float] = {}
        self._passed: dict[int, float] = {}  # drafts that passed of those asked for lately
        self._limits: dict[int, int] = {}  # of those that may not be asked for max_draft
        self._seen: dict[int, float] = {}  # drafts that would come true of those last seen or had, where there are any

    def start(self, request_id: int, limit: int, worth: float) -> None:
        """A request that may be asked for up to limit tokens, and what it begins with."""
        self.stop(request_id)
        self._worth[request_id] = worth if limit else NEVER
        if limit < self._max_draft:
            self._limits[request_id] = limit

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._worth.pop(request_id, None)
        self._passed.pop(request_id, None)
        self._limits.pop(request_id, None)
        self._seen.pop(request_id, None)

    def renew(self, worth: float) -> None:
        """All begin anew with this."""
        self._worth = {key: worth if known > NEVER else NEVER for key, known in self._worth.items()}

    def limit(self, request_id: int) -> int:
        """Longest draft of the request."""
        return self._limits.get(request_id, self._max_draft)

    def still_here(self, lengths: dict[int, int]) -> dict[int, int]:
        """Those that have not left since."""
        worth = self._worth
        return lengths if lengths.keys() <= worth.keys() else {key: lengths[key] for key in lengths if key in worth}

    def share_above(self, least_worth: float) -> float:
        """Of all requests, those that are worth so much."""
        return sum(map(least_worth.__le__, self._worth.values())) / len(self._worth) if self._worth else 0.0

    @property
    def evenness(self) -> float:
        """How evenly the drafts that passed lately serve all requests, 0 to 1: log(1 + tokens), which says what they do
        for one, on average over that of the average. 1 = each has as much of them.
        """
        passed = [self._passed.get(request_id, 0.0) for request_id in self._worth]
        total = sum(passed)
        if not total:
            return 1.0
        return sum(map(math.log1p, passed)) / (len(passed) * math.log1p(total / len(passed)))

    def asked_for(self, request_ids: Sequence[int], length: int, least_worth: float, step: int) -> dict[int, int]:
        """Lengths to ask for, up to `length`.

        Everybody, but for those whose drafts come to nothing and whose turn it is not at this step.
        """
        worth = self._worth
        lengths = {key: length for key in request_ids if worth[key] >= least_worth}
        if len(lengths) < len(request_ids):
            for key in request_ids:
                if not (step + key) % ASK_AGAIN_STEPS and worth[key] > NEVER:
                    lengths[key] = length
        for key, limit in self._limits.items():
            if key in lengths and limit < length:
                lengths[key] = limit
        return lengths

    def learn(self, request_ids: Iterable[int], worths: Iterable[float]) -> None:
        """These were asked, and what came was worth so much."""
        worth = self._worth
        for key, new in zip(request_ids, worths, strict=True):
            known = worth[key]
            worth[key] = known + (new - known) / MEMORY_ASKS

    def miss(self, request_ids: Collection[int]) -> None:
        """These were asked, and nothing came."""
        worth, seen = self._worth, self._seen
        for key in request_ids:
            worth[key] -= worth[key] / MEMORY_ASKS
            seen.pop(key, None)
        self.verify(dict.fromkeys(request_ids, 0))

    def verify(self, passed: Mapping[int, int]) -> None:
        """So many drafts of these passed."""
        lately = self._passed
        for key, tokens in passed.items():
            if key in self._worth:
                known = lately.get(key, tokens)
                lately[key] = known + (tokens - known) / RECENT_ASKS

    def glimpse(self, seen: Mapping[int, float]) -> None:
        """So many drafts would come true if these were asked."""
        if not self._seen and not any(seen.values()):
            return
        for key, tokens in seen.items():
            if tokens > 0.0 and self._worth.get(key, NEVER) > NEVER:
                self._seen[key] = tokens
            else:
                self._seen.pop(key, None)

    def num_seen(self, request_ids: Collection[int], *, is_shared: bool = False) -> float:
        """Drafts of these that would come true, as far as anybody has seen.

        With is_shared, as many as would do the same for them if each had equally many of them.
        """
        seen, num_rows = self._seen, len(request_ids)
        if not seen:
            return 0.0
        tokens = [seen.get(key, 0.0) for key in request_ids]
        return num_rows * math.expm1(sum(map(math.log1p, tokens)) / num_rows) if is_shared else sum(tokens)
