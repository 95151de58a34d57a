"""What a request that arrives may expect, from who runs and who waits: the engine's state made ready for forecast.py.

Knows requests and step times, no target of the first token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from threefold.request import Request, RequestStatus
from threefold.schedule.forecast import AnswerLengths, Ending, Forecast, Job, Room, forecast
from threefold.schedule.pace import Pace
from threefold.schedule.running import Row
from threefold.schedule.tempo import Tempo
from threefold.step import TokenDelta

MEMORY_STEPS = 32
"""Steps that the tokens of a row and step are averaged over."""
MEMORY_PROMPTS = 32
"""Prompts that the share found in the prefix cache is averaged over."""
_NO_END = 1 << 40


class Line(NamedTuple):
    """Who is before a request that arrives, and what there is for all of them."""

    rows: Sequence[Row]
    """Running, those whose prompt is being fed among them."""
    waiting: Sequence[Request]
    """In their order."""
    num_free_blocks: int
    block_size: int
    max_rows: int
    max_tokens: int
    """Of a step."""

    @property
    def is_empty(self) -> bool:
        """True when nobody is before it."""
        return not self.rows and not self.waiting

    def emptied(self) -> Line:
        """The same machine with nobody on it."""
        return self._replace(rows=(), waiting=(), num_free_blocks=_NO_END)


def is_fed(request: Request) -> bool:
    """True while more than the one token said last has to be computed."""
    return request.num_tokens - request.num_computed > 1


class Outlook:
    """Forecasts first tokens.

    Args:
        pace: what steps take.
        tempo: what they may hold.

    Attributes:
        lengths: of the answers that ended.
    """

    def __init__(self, pace: Pace, tempo: Tempo) -> None:
        self.lengths = AnswerLengths()
        self._pace = pace
        self._tempo = tempo
        self._fresh_share = 1.0  # of prompt tokens, those that no prefix cache has
        self._tokens_a_row = 1.0  # committed by a row in a step: more than one with drafts
        self._max_tokens = 1  # of a step
        self._rooms: dict[int, Room] = {}  # since the last step, by rows that say tokens

    def observe_step(self, deltas: Sequence[TokenDelta]) -> None:
        """A step ended and brought this."""
        self._rooms.clear()
        if deltas:
            num_tokens = sum([len(delta.token_ids) for delta in deltas])
            self._tokens_a_row += (num_tokens / len(deltas) - self._tokens_a_row) / MEMORY_STEPS

    def observe_admission(self, num_tokens: int, num_cached: int) -> None:
        """A request was admitted with so many tokens, of which the prefix cache had some."""
        self._fresh_share += (1.0 - num_cached / num_tokens - self._fresh_share) / MEMORY_PROMPTS

    def context_of(self, num_tokens: int, num_rows: int) -> float:
        """KV tokens of a row by mid-answer, where num_rows hold num_tokens now."""
        return num_tokens / num_rows + 0.5 * self.lengths.mean_tokens

    def forecast(self, request: Request, line: Line) -> Forecast:
        """When a request's prompt would be begun, and when its first token would come."""
        self._max_tokens = line.max_tokens
        num_tokens = sum([row.request.num_tokens for row in line.rows]) + request.num_tokens
        context_tokens = self._tempo.context_tokens = self.context_of(num_tokens, len(line.rows) + 1)
        decoding = [row.request for row in line.rows if not is_fed(row.request)]
        fed = [row.request for row in line.rows if is_fed(row.request)]
        step_ms = self._room(len(decoding), math.inf).step_ms
        return forecast(
            [Ending(self._rest(one, place) * step_ms, len(one.block_ids)) for place, one in enumerate(decoding)],
            [self._job(one, place, line.block_size) for place, one in enumerate((*fed, *line.waiting, request))],
            num_decoding=len(decoding),
            num_rows=len(line.rows),
            max_rows=self._tempo.most_rows(context_tokens, line.max_rows),
            num_free_blocks=line.num_free_blocks,
            room=self._room,
        )

    def _job(self, request: Request, place: int, block_size: int) -> Job:
        num_left = request.num_tokens - request.num_computed
        rest = self._rest(request, place)
        if request.status is RequestStatus.RUNNING:
            return Job(num_left, 0, len(request.block_ids), rest, has_row=True)
        num_fresh = num_left * self._fresh_share
        return Job(num_fresh, math.ceil(num_fresh / block_size), 0, rest, has_row=False)

    def _rest(self, request: Request, place: int) -> float:
        """Steps until a request ends, once it says tokens."""
        most = request.max_total_tokens - request.num_tokens
        return self.lengths.rest(request.num_output_tokens, most, place) / max(self._tokens_a_row, 1.0)

    def _room(self, num_decoding: int, num_in_line: float) -> Room:
        """What a step has for prompts beside so many rows, and how long it takes with as many as are in line."""
        whole = self._rooms.get(num_decoding)
        if whole is None:
            kv_tokens = num_decoding * self._tempo.context_tokens
            most = max(self._max_tokens - num_decoding, 1)
            num_tokens = self._tempo.most_prompt_tokens(num_decoding, kv_tokens, most)
            whole = self._rooms[num_decoding] = self._room_of(num_decoding, num_tokens)
        if num_in_line >= whole.num_tokens:
            return whole
        return self._room_of(num_decoding, max(math.ceil(num_in_line), 1))

    def _room_of(self, num_decoding: int, num_tokens: int) -> Room:
        kv_tokens = num_decoding * self._tempo.context_tokens + num_tokens
        return Room(num_tokens, self._pace.ms(num_decoding + num_tokens, num_decoding + 1, kv_tokens))
