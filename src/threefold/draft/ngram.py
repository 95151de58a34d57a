"""Drafts by looking up where the last tokens of a request occurred in it before (prompt lookup decoding, Saxena 2023).

Knows nothing about models; costs microseconds. It pays where answers quote: code, extraction, summaries, loops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from threefold.draft.drafter import Draft, RowDrafts, RowTexts
from threefold.draft.match import Longs
from threefold.draft.texts import Texts, prepare


class NgramDrafter:
    """A drafter over each request's own prompt and output.

    Args:
        min_match: shortest match that may draft, tokens, at least 1.
        max_match: longest match looked for, tokens, not less than min_match.
    """

    name = "ngram"

    def __init__(self, min_match: int, max_match: int) -> None:
        self._texts = Texts(min_match, max_match)
        self._slots: dict[int, int] = {}  # by request id
        prepare()

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:  # noqa: ARG002
        """Begin with these tokens; nothing is shared between requests, so the salt does not matter."""
        self.stop(request_id)
        self._slots[request_id] = self._texts.add(token_ids)

    def observe(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Append; the index catches up with the next proposal."""
        self._texts.extend(self._slots[request_id], token_ids)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """What followed the longest match; a request without a match is left out."""
        asked = {request_id: num_tokens for request_id, num_tokens in wanted.items() if num_tokens > 0}
        num_wanted = np.fromiter(asked.values(), np.int64, len(asked))
        return self._texts.search(self._find(asked), num_wanted).by_request(asked)

    def draft_rows(self, request_ids: Sequence[int], num_wanted: Longs, texts: RowTexts) -> RowDrafts:
        """What followed the longest match of each row; the index catches up with it first."""
        return self._texts.search(self._find(request_ids), num_wanted, texts)

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._texts.drop(slot)

    def _find(self, request_ids: Collection[int]) -> Longs:
        return np.fromiter(map(self._slots.__getitem__, request_ids), np.int64, len(request_ids))
