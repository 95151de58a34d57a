"""When a request's first token would come, given who runs and who waits before it.

Prompts are fed one after another, each as fast as the step leaves room for it; one that finds no row or no blocks waits
for the next answer to end. How long answers get is learned from those that ended. Knows nothing about targets.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

FIRST_ANSWER_TOKENS = 128.0
"""Mean length of answers while none has ended."""
MEMORY_ANSWERS = 64
"""Answers whose lengths are remembered."""
_GOLDEN = 0.6180339887498949


class AnswerLengths:
    """How long answers get: as long as the last ones did."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=MEMORY_ANSWERS)
        self._sorted: list[int] = []

    @property
    def mean_tokens(self) -> float:
        """Mean length of the answers that ended lately."""
        return sum(self._recent) / len(self._recent) if self._recent else FIRST_ANSWER_TOKENS

    def observe(self, num_tokens: int) -> None:
        """An answer ended."""
        if len(self._recent) == MEMORY_ANSWERS:
            self._sorted.remove(self._recent[0])
        self._recent.append(num_tokens)
        insort(self._sorted, num_tokens)

    def rest(self, num_said: int, most: int, place: int) -> float:
        """Tokens still to come of an answer with num_said, which may have `most` more.

        It ends like one of the known answers that were longer; which, `place` decides: the answers at places 0, 1, 2 …
        are spread evenly over those (the golden ratio's multiples, modulo 1), as they would be if each drew one.
        """
        first = bisect_right(self._sorted, num_said)
        num_longer = len(self._sorted) - first
        if not num_longer:
            return min(self.mean_tokens, most)
        share = place * _GOLDEN % 1.0
        return min(self._sorted[first + int(share * num_longer)] - num_said, most)


class Job(NamedTuple):
    """A prompt that has to be fed, whole or in part."""

    num_tokens: float
    """Still to be fed."""
    num_blocks: int
    """That it does not hold yet."""
    num_held_blocks: int
    """Free again when it ends, apart from those."""
    answer_tokens: float
    """Expected."""
    has_row: bool


class Ending(NamedTuple):
    """A row that says tokens: when it ends, and what is free then."""

    at_ms: float
    num_blocks: int


class Room(NamedTuple):
    """What a step has for prompts beside the rows that say tokens."""

    num_tokens: int
    """At least 1."""
    step_ms: float
    """Of a step that uses it all."""


RoomOf = Callable[[int, float], Room]
"""For so many rows that say tokens and so many prompt tokens in line, what a step has for prompts."""


class Forecast(NamedTuple):
    """What a request may expect."""

    wait_ms: float
    """Until its own prompt is begun."""
    first_token_ms: float


def forecast(
    endings: Iterable[Ending],
    jobs: Iterable[Job],
    *,
    num_decoding: int,
    num_rows: int,
    max_rows: int,
    num_free_blocks: int,
    room: RoomOf,
) -> Forecast:
    """Feed one job after another; the answer is the last one's. O(jobs · log rows).

    Args:
        endings: of the rows that say tokens.
        jobs: those being fed first, then those that wait, in their order; the last is the request in question.
        num_decoding: rows that say tokens.
        num_rows: rows, those being fed among them.
        max_rows: most rows.
        num_free_blocks: blocks that nobody holds.
        room: what a step has for prompts.
    """
    ends = list(endings)
    heapify(ends)
    now_ms = begun_ms = last_ms = 0.0
    for job in jobs:
        while ends and (ends[0].at_ms <= now_ms or not _fits(job, num_rows, max_rows, num_free_blocks)):
            at_ms, num_blocks = heappop(ends)
            now_ms = max(now_ms, at_ms)
            num_decoding -= 1
            num_rows -= 1
            num_free_blocks += num_blocks
        begun_ms = now_ms
        num_tokens, step_ms = room(num_decoding, math.inf)
        last_ms = room(num_decoding, job.num_tokens).step_ms
        now_ms += job.num_tokens / num_tokens * step_ms
        num_rows += not job.has_row
        num_decoding += 1
        num_free_blocks -= job.num_blocks
        heappush(ends, Ending(now_ms + job.answer_tokens * step_ms, job.num_blocks + job.num_held_blocks))
    return Forecast(begun_ms, now_ms + last_ms)


def _fits(job: Job, num_rows: int, max_rows: int, num_free_blocks: int) -> bool:
    """As admission sees it: a row, and blocks for all with one to spare for each that runs."""
    return job.has_row or (num_rows < max_rows and job.num_blocks + num_rows <= num_free_blocks)
