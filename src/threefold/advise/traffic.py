"""A trace made ready for the simulator: each request with stand-in tokens and with what drafts would do for it.

The scheduler and the cache look at tokens only to tell equal blocks from different ones, so a block is its name and
fifteen zeros. Knows nothing about time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from threefold.advise.logged import BLOCK_TOKENS
from threefold.advise.replay import Drafts, Replay
from threefold.advise.trace import TraceRequest

NO_DRAFTS = Drafts([], [])
_UNNAMED = 1 << 32
"""Numbers of blocks that no other request has; beyond them lie the log's names."""
_NAMES_FROM = 1 << 62


class SimRequest(NamedTuple):
    """One request for the simulator."""

    source: TraceRequest
    arrival_s: float | None
    drafts: Drafts
    """Of the request itself, or of another of its kind when it was not replayed."""
    serial: int
    """Tells its unnamed blocks from everybody else's."""
    num_named: int
    """Blocks that go by the log's names; the others are nobody else's."""

    def tokens(self) -> list[int]:
        """Stand-ins for prompt and output."""
        length = self.source.num_prompt_tokens + self.source.num_output_tokens
        tokens = [0] * length
        names = [name >> 2 | _NAMES_FROM for name in self.source.names[: self.num_named].tolist()]
        num_blocks = -(-length // BLOCK_TOKENS)
        own = range(self.serial * _UNNAMED + len(names), self.serial * _UNNAMED + num_blocks)
        tokens[::BLOCK_TOKENS] = [*names[:num_blocks], *own]
        return tokens


def to_traffic(
    trace: Sequence[TraceRequest], replayed: Replay, drafter: str | None, *, seed: int = 0
) -> list[SimRequest]:
    """The trace with what a drafter does for each request; None = no drafts.

    A request that was not replayed gets the drafts of one of its kind that was, else of any.
    """
    known = replayed.drafts.get(drafter, {}) if drafter is not None else {}
    donors = _donors(trace, known, seed)
    return [
        SimRequest(one, one.arrival_s, known.get(place) or next(donors[one.kind]), place, len(one.names))
        for place, one in enumerate(trace)
    ]


def shared_lengths(trace: Sequence[TraceRequest]) -> list[int]:
    """Of each request, how many of its first blocks another request has too."""
    counts = Counter(name for one in trace for name in one.names.tolist())
    return [sum(counts[name] > 1 for name in one.names.tolist()) for one in trace]


def another(sim: SimRequest, num_shared: int, serial: int) -> SimRequest:
    """A request like this one that somebody else might send: what it shared it shares, the rest is its own."""
    return sim._replace(serial=serial, num_named=min(num_shared, sim.num_named))


def _donors(trace: Sequence[TraceRequest], known: dict[int, Drafts], seed: int) -> dict[str, Iterator[Drafts]]:
    generator = random.Random(seed)  # noqa: S311 a choice, no secret
    piles: dict[str, list[Drafts]] = {one.kind: [] for one in trace}
    for place, drafts in known.items():
        piles[trace[place].kind].append(drafts)
    everybody = list(known.values())
    return {kind: _choices(pile or everybody, generator) for kind, pile in piles.items()}


def _choices(pile: list[Drafts], generator: random.Random) -> Iterator[Drafts]:
    while True:
        yield generator.choice(pile) if pile else NO_DRAFTS


def assumed_drafts(chance: float, max_draft: int, num_tokens: int, seed: int) -> Drafts:
    """Drafts of a model that is right with one probability at every token: what a draft model is assumed to do."""
    dice = random.Random(seed)  # noqa: S311 dice, no secret
    survival = tuple(chance**length for length in range(1, max_draft + 1))
    right = []
    for _ in range(max(num_tokens - 1, 0)):
        count = 0
        while count < max_draft and dice.random() < chance:
            count += 1
        right.append(count)
    return Drafts(right, [survival] * len(right))
