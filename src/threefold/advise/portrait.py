"""What a load looks like, measured: arrivals, lengths, shared prefixes, temperatures, structure, predictability.

A portrait is plain figures (see `Portrait.to_dict`); no text of the log is in it unless samples are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from threefold.advise.arrivals import describe_arrivals
from threefold.advise.logged import BLOCK_TOKENS, Log
from threefold.advise.replay import MAX_DRAFT, Drafts, Replay
from threefold.advise.reuse import hit_rate, prompt_reuse
from threefold.advise.trace import TraceRequest

PERCENTILES = (50, 90, 95, 99)
CACHE_BLOCKS = tuple(2**power for power in range(6, 21, 2))
"""Cache sizes that the hit rate is told for, blocks."""
MOST_KINDS = 16
SAMPLE_CHARS = 200


@dataclass(slots=True)
class Portrait:
    """A load in figures."""

    num_requests: int
    forms: dict[str, int]
    num_faults: int
    faults: list[str]
    """The first few broken lines, each with its number and what is wrong."""
    arrivals: dict[str, Any] | None
    """None when the log has no times."""
    prompt_tokens: dict[str, float]
    output_tokens: dict[str, float]
    num_assumed_lengths: int
    """Answers that are not in the log; their length is assumed."""
    prefix: dict[str, Any]
    temperature: dict[str, float]
    """Share of requests by temperature."""
    structured_share: float
    kinds: dict[str, dict[str, Any]]
    """By kind of request: how many, lengths, predictability."""
    predictability: dict[str, dict[str, Any]]
    """By drafter, over all kinds."""
    replay: dict[str, Any]
    """What of the log was replayed."""
    samples: list[str] = field(default_factory=list)
    """Beginnings of prompts, only when asked."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def draw_portrait(log: Log, trace: Sequence[TraceRequest], replayed: Replay, *, include_text: bool = False) -> Portrait:
    """The portrait of a log.

    Args:
        log: as read.
        trace: the same in numbers.
        replayed: its outputs replayed.
        include_text: show beginnings of a few prompts.
    """
    return Portrait(
        num_requests=len(trace),
        forms=log.forms,
        num_faults=len(log.faults),
        faults=[f"line {fault.line}: {fault.reason}" for fault in log.faults[:5]],
        arrivals=describe_arrivals([one.arrival_s or 0.0 for one in trace]) if log.has_times else None,
        prompt_tokens=_spread([one.num_prompt_tokens for one in trace]),
        output_tokens=_spread([one.num_output_tokens for one in trace]),
        num_assumed_lengths=sum(not one.is_length_known for one in trace),
        prefix=_prefix(trace),
        temperature=_temperatures(trace),
        structured_share=sum(one.is_structured for one in trace) / len(trace),
        kinds=_kinds(trace, replayed),
        predictability={name: _predictability(list(of.values())) for name, of in replayed.drafts.items()},
        replay={
            "num_sampled": replayed.num_sampled,
            "num_replayable": replayed.num_replayable,
            "propose_ms": replayed.propose_ms,
            "why_none": replayed.why_none,
        },
        samples=[_sample(one.prompt, one.messages) for one in log.requests[:5]] if include_text else [],
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    array = np.asarray(values, dtype=np.float64)
    shares = np.percentile(array, PERCENTILES)
    return {
        "mean": float(array.mean()),
        **{f"p{name}": float(value) for name, value in zip(PERCENTILES, shares, strict=True)},
        "max": float(array.max()),
        "total": float(array.sum()),
    }


def _prefix(trace: Sequence[TraceRequest]) -> dict[str, Any]:
    """Shared prefixes: what any cache could find, and what caches of several sizes would."""
    needed, prompt_tokens = prompt_reuse(trace)
    num_blocks = sum(len(one.names) for one in trace)
    return {
        "is_known": num_blocks > 0,
        "block_tokens": BLOCK_TOKENS,
        "shared_tokens": len(needed) * BLOCK_TOKENS,
        "best_hit_rate": hit_rate(needed, prompt_tokens, None),
        "hit_rate_by_blocks": {str(size): hit_rate(needed, prompt_tokens, size) for size in CACHE_BLOCKS},
    }


def _temperatures(trace: Sequence[TraceRequest]) -> dict[str, float]:
    counts = Counter(_temperature_word(one.temperature) for one in trace)
    return {word: count / len(trace) for word, count in sorted(counts.items())}


def _temperature_word(temperature: float | None) -> str:
    if temperature is None:
        return "not said"
    if temperature == 0:
        return "0"
    return "up to 0.5" if temperature <= 0.5 else "up to 1" if temperature <= 1 else "above 1"


def _kinds(trace: Sequence[TraceRequest], replayed: Replay) -> dict[str, dict[str, Any]]:
    """The most frequent kinds, the rest together."""
    frequent = [kind for kind, _ in Counter(one.kind for one in trace).most_common(MOST_KINDS)]
    members: dict[str, list[int]] = {}
    for place, request in enumerate(trace):
        members.setdefault(request.kind if request.kind in frequent else "further kinds", []).append(place)
    described = {}
    for kind, places in sorted(members.items(), key=lambda item: -len(item[1])):
        described[kind] = {
            "num_requests": len(places),
            "mean_prompt_tokens": float(np.mean([trace[place].num_prompt_tokens for place in places])),
            "mean_output_tokens": float(np.mean([trace[place].num_output_tokens for place in places])),
            "predictability": {
                name: _predictability([of[place] for place in places if place in of])
                for name, of in replayed.drafts.items()
            },
        }
    return described


def _predictability(drafts: Sequence[Drafts]) -> dict[str, Any]:
    """What asking for drafts at every position comes to.

    `survival` is over all positions: the chance that asking there for a draft gives at least 1, 2, … right tokens;
    `survival_given_draft` is over those where something was proposed. `tokens_a_step` is for a request that always
    verifies all it is offered: accepted drafts and the one token that a step says itself.
    """
    right = np.array([count for one in drafts for count in one.num_right], dtype=np.int64)
    drafted = np.array([len(survival) for one in drafts for survival in one.survival], dtype=np.int64)
    if not len(right):
        return {"num_requests": 0}
    lengths = range(1, MAX_DRAFT + 1)
    num_drafts = max(int((drafted > 0).sum()), 1)
    return {
        "num_requests": len(drafts),
        "num_positions": len(right),
        "drafted_share": float((drafted > 0).mean()),
        "mean_drafted": float(drafted[drafted > 0].mean()) if drafted.any() else 0.0,
        "mean_accepted": float(right[drafted > 0].mean()) if drafted.any() else 0.0,
        "survival": [float((right >= length).mean()) for length in lengths],
        "survival_given_draft": [float((right >= length).sum() / num_drafts) for length in lengths],
        "tokens_a_step": tokens_a_step(drafts),
    }


def tokens_a_step(drafts: Sequence[Drafts]) -> float:
    """Output tokens over steps when every request verifies every draft that it is offered."""
    num_tokens = num_steps = 0
    for one in drafts:
        num_committed = 1
        while num_committed <= len(one.num_right):
            num_committed += one.num_right[num_committed - 1] + 1
            num_steps += 1
        num_tokens += len(one.num_right)
    return num_tokens / max(num_steps, 1)


def _sample(prompt: str | None, messages: list[dict[str, Any]] | None) -> str:
    text = prompt if prompt is not None else str((messages or [{}])[-1].get("content") or "")
    return text[:SAMPLE_CHARS]
