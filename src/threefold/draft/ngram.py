"""Drafts by looking up where the last tokens of a request occurred in it before (prompt lookup decoding, Saxena 2023).

Knows nothing about models; costs microseconds. It pays where answers quote: code, extraction, summaries, loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from threefold.draft.drafter import Draft
from threefold.draft.match import MatchIndex, prepare


class NgramDrafter:
    """A drafter over each request's own prompt and output.

    Args:
        min_match: shortest match that may draft, tokens, at least 1.
        max_match: longest match looked for, tokens, not less than min_match.
    """

    name = "ngram"

    def __init__(self, min_match: int, max_match: int) -> None:
        self._min_match = min_match
        self._max_match = max_match
        self._texts: dict[int, MatchIndex] = {}
        prepare()

    def start(self, request_id: int, token_ids: Sequence[int], salt: str) -> None:  # noqa: ARG002
        """Begin with these tokens; nothing is shared between requests, so the salt does not matter."""
        text = self._texts[request_id] = MatchIndex(self._min_match, self._max_match)
        text.extend(token_ids)

    def observe(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Append; the index catches up with the next proposal."""
        self._texts[request_id].extend(token_ids)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """What followed the longest match; a request without a match is left out."""
        drafts = {}
        for request_id, num_tokens in wanted.items():
            text = self._texts[request_id]
            found = text.find(text, num_tokens) if num_tokens > 0 else None
            if found is not None:
                drafts[request_id] = found.draft
        return drafts

    def stop(self, request_id: int) -> None:
        """Forget the request."""
        self._texts.pop(request_id, None)
