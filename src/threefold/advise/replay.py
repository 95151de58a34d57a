"""Outputs replayed through the real drafters: what they would have drafted at each position, and how much of it right.

Verification draws as if no draft were there, at every temperature, so a logged output is what the model would have
said with drafts too: the replay is exact, up to what a drafter remembers of other requests. Knows nothing about cost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from threefold.advise.trace import ReplayText, TraceRequest
from threefold.config import SpeculationConfig
from threefold.draft.drafter import Drafter
from threefold.draft.ngram import NgramDrafter
from threefold.draft.suffix import SuffixDrafter

_DEFAULT = SpeculationConfig()
MAX_DRAFT = _DEFAULT.num_speculative_tokens
REPLAY_TOKENS = 240_000
"""Output tokens replayed at most; beyond, requests are drawn from every kind alike."""
INDEX_TOKENS = 4_000_000
"""Prompt tokens read for it at most."""
DRAFTERS = ("ngram", "suffix")


class Drafts(NamedTuple):
    """What a drafter does for one request, by the number of output tokens already committed."""

    num_right: list[int]
    """Of the draft proposed there, tokens that the output goes on with; the first entry is for one committed token."""
    survival: list[tuple[float, ...]]
    """The drafter's own estimates; () where it proposed nothing."""


class Replay(NamedTuple):
    """What came of replaying a trace."""

    drafts: dict[str, dict[int, Drafts]]
    """By drafter and by the request's place in the trace."""
    propose_ms: dict[str, float]
    """By drafter, time of one proposal for one request on this machine."""
    num_sampled: int
    """Requests replayed."""
    num_replayable: int
    """Requests that could have been."""
    why_none: str = "the log has no answers to replay: record with text or hashes, or let `advise --answer` make some"
    """Where nothing was replayed."""

    def of(self, places: Sequence[int]) -> Replay:
        """That of some requests, renumbered."""
        drafts = {
            name: {index: known[place] for index, place in enumerate(places) if place in known}
            for name, known in self.drafts.items()
        }
        return self._replace(drafts=drafts)


NO_REPLAY = Replay({}, {}, 0, 0, "not replayed: the weights are made up, so they say nothing that could be foreseen")
"""Of a model without weights."""


def replay(
    trace: Sequence[TraceRequest],
    *,
    drafters: Sequence[str] = DRAFTERS,
    max_draft: int = MAX_DRAFT,
    max_tokens: int = REPLAY_TOKENS,
    seed: int = 0,
) -> Replay:
    """Replay as many requests as the bounds allow, in the log's order.

    Args:
        trace: the load.
        drafters: which ones.
        max_draft: longest draft.
        max_tokens: output tokens to replay at most.
        seed: of the choice among requests.
    """
    places = [place for place, one in enumerate(trace) if one.text is not None]
    chosen = set(_chosen(trace, places, max_tokens, seed))
    drafts: dict[str, dict[int, Drafts]] = {}
    propose_ms: dict[str, float] = {}
    for name in drafters:
        drafts[name], propose_ms[name] = _replay_one(name, trace, places, chosen, max_draft)
    return Replay(drafts, propose_ms, len(chosen), len(places))


def _chosen(trace: Sequence[TraceRequest], places: Sequence[int], max_tokens: int, seed: int) -> list[int]:
    """Requests of all kinds in turn until a bound is reached; at least one."""
    piles: dict[str, list[int]] = {}
    for place in places:
        piles.setdefault(trace[place].kind, []).append(place)
    generator = random.Random(seed)  # noqa: S311 a choice, no secret
    for pile in piles.values():
        generator.shuffle(pile)
    chosen: list[int] = []
    num_output = num_prompt = 0
    while any(piles.values()):
        for pile in piles.values():
            if not pile:
                continue
            text = trace[pile[-1]].text
            assert text is not None
            num_output += len(text.output)
            num_prompt += len(text.prompt)
            if chosen and (num_output > max_tokens or num_prompt > INDEX_TOKENS):
                return chosen
            chosen.append(pile.pop())
    return chosen


def _replay_one(
    name: str, trace: Sequence[TraceRequest], places: Sequence[int], chosen: set[int], max_draft: int
) -> tuple[dict[int, Drafts], float]:
    """One drafter over the trace. Requests that are not replayed still leave their answer in its memory."""
    made: dict[int, Drafts] = {}
    drafters = {num_lost: _drafter(name, num_lost) for num_lost in (0, 1)}
    num_proposals, seconds = 0, 0.0
    for place in places:
        text = trace[place].text
        assert text is not None
        drafter = drafters[text.num_lost]
        salt = "" if text.is_own else str(place)
        if place in chosen:
            began_s = time.perf_counter()
            drafter.start(place, text.prompt, salt)
            made[place] = _drafts(drafter, place, text, max_draft)
            drafter.stop(place)
            seconds += time.perf_counter() - began_s
            num_proposals += len(text.output)
        elif name == "suffix" and text.is_own:
            drafter.start(place, (), salt)
            drafter.observe(place, text.output)
            drafter.stop(place)
    return made, seconds * 1000 / max(num_proposals, 1)


def _drafter(name: str, num_lost: int) -> Drafter:
    limits = max(_DEFAULT.prompt_lookup_min - num_lost, 1), _DEFAULT.prompt_lookup_max - num_lost
    return SuffixDrafter(*limits) if name == "suffix" else NgramDrafter(*limits)


def _drafts(drafter: Drafter, place: int, text: ReplayText, max_draft: int) -> Drafts:
    """Ask after every token of the output."""
    output = text.output
    num_right: list[int] = []
    survivals: list[tuple[float, ...]] = []
    known: dict[tuple[float, ...], tuple[float, ...]] = {}
    wanted = {place: max_draft}
    for num_committed in range(1, len(output)):
        drafter.observe(place, output[num_committed - 1 : num_committed])
        draft = drafter.propose(wanted).get(place)
        if draft is None:
            num_right.append(0)
            survivals.append(())
            continue
        right = 0
        for token_id, actual in zip(draft.token_ids, output[num_committed : num_committed + max_draft], strict=False):
            if token_id != actual:
                break
            right += 1
        num_right.append(right)
        survivals.append(known.setdefault(draft.survival, draft.survival))
    drafter.observe(place, output[-1:])
    return Drafts(num_right, survivals)
