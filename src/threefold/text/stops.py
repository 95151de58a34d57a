"""Stop strings in a stream of text: found wherever token boundaries fall, with as little text held back as can be.

Knows nothing about tokens: pieces of text go in, pieces that are safe to show come out. What comes out does not depend
on how the text was cut into pieces, so an answer is the same streamed or whole, drafted or not.
"""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """What a piece of text came to."""

    text: str
    """Safe to show: no part of it can still become a stop string."""
    stop: str | None
    """The stop string that was completed, None so far."""


class StopFinder:
    """Looks for a few stop strings in one answer.

    The stop string that is complete first wins; of two that end at the same character, the longer one.

        fed so far   [ shown ................ | held ]
                                                ^ the longest end of the text that begins a stop string
    """

    __slots__ = ("_held", "_is_included", "_stops")

    def __init__(self, stops: tuple[str, ...], *, is_included: bool = False) -> None:
        self._stops = stops
        self._is_included = is_included
        self._held = ""

    def push(self, piece: str) -> Found:
        """Feed the next piece; once a stop string is found nothing more may be fed."""
        text = self._held + piece
        found = self._earliest(text)
        if found is not None:
            start, stop = found
            self._held = ""
            return Found(text[: start + len(stop)] if self._is_included else text[:start], stop)
        num_safe = len(text) - self._num_held(text)
        self._held = text[num_safe:]
        return Found(text[:num_safe], None)

    def flush(self) -> str:
        """The text held back; for the end of an answer that no stop string ended."""
        held, self._held = self._held, ""
        return held

    def _earliest(self, text: str) -> tuple[int, str] | None:
        """Start and stop string of the match that is complete first."""
        matches = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string, in characters."""
        longest = 0
        for stop in self._stops:
            start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while start >= 0 and not stop.startswith(text[start:]):
                start = text.find(stop[0], start + 1)
            if start >= 0:
                longest = max(longest, len(text) - start)
        return longest
