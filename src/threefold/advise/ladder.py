"""The claim, tested: lever upon lever on one model and one load, each step's gain and what it did to latency.

    one at a time         one request runs, the others wait
    static batches        so many at once, nobody new before the last of them is done
    continuous batching   requests enter and leave at any step
    + prefix cache        equal beginnings are computed once
    + speculation         the controller drafts as far as it pays
    + quantisation        only with a quantised copy of the model: passed over, with the reason

Every rung answers the same requests in full length. Knows how rungs are run by a protocol only, so that it can be
tested without a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from threefold.advise.drive import Ask
from threefold.advise.result import LoadResult
from threefold.advise.verdict import users_said

RUNGS = ("one at a time", "static batches", "continuous batching", "+ prefix cache", "+ speculation")
QUANTISATION = "+ quantisation"
TRIPLE = 3.0
PAPER_GAIN = 1.1
"""A ladder that ends below this gained nothing worth the name."""
MOST_WAVES = 4
"""Requests a user."""
NUM_TURNS = 2
"""Times that every rung is measured."""


class Load(NamedTuple):
    """Something to ask, and a name for it."""

    name: str
    asks: list[Ask]


class Rungs(Protocol):
    """Runs one rung; a fresh engine every time, the controller alone lives on."""

    def run(self, rung: str, asks: Sequence[Ask], users: int) -> LoadResult:
        """Answer the requests with so many users."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rung at one load."""

    rung: str
    output_rate: float
    ttft_p50_ms: float
    tpot_p50_ms: float
    gain: float
    """Output rate over that of the rung below; the first rung has 1."""
    total_gain: float
    """Over the first rung."""


@dataclass(slots=True)
class Ladder:
    """All rungs at one load and number of users."""

    load: str
    users: int
    num_requests: int
    steps: list[Step] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(slots=True)
class LadderResult:
    """Every ladder that was climbed."""

    ladders: list[Ladder]
    skipped: dict[str, str]
    """Rungs that were passed over, and why."""
    conclusions: list[str]
    is_cut: bool
    """True when the budget or Ctrl-C ended it early."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def climb(
    rungs: Rungs,
    loads: Sequence[Load],
    users: Sequence[int],
    *,
    budget_s: float,
    why_no_quantisation: str,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> LadderResult:
    """Climb every ladder, as long as time lasts; what was measured is kept.

    Args:
        rungs: runs them.
        loads: what to ask.
        users: numbers of users to ask it with.
        budget_s: seconds for everything.
        why_no_quantisation: said in place of its figures.
        say: told of each ladder.
        clock: seconds.
    """
    ends_s = clock() + budget_s
    rungs.run(RUNGS[-1], loads[0].asks[:2], 1)  # warm: the first steps of a process are slow
    cells = [(load, count) for load in loads for count in users]
    ladders: list[Ladder] = []
    is_cut = False
    try:
        for index, (load, count) in enumerate(cells):
            share_s = (ends_s - clock()) / (len(cells) - index)
            if share_s <= 0:
                is_cut = True
                break
            ladders.append(_climb_one(rungs, load, count, share_s, clock))
            say(f"[{index + 1}/{len(cells)}] {_line(ladders[-1])}")
    except KeyboardInterrupt:
        is_cut = True
    return LadderResult(ladders, {QUANTISATION: why_no_quantisation}, conclusions(ladders), is_cut)


def _climb_one(rungs: Rungs, load: Load, users: int, share_s: float, clock: Callable[[], float]) -> Ladder:
    """The first rung is the slowest: its speed says how many requests fit into the time."""
    began_s = clock()
    first = load.asks[: max(min(users, 2), 1)]
    rungs.run(RUNGS[0], first, len(first))
    one_s = max((clock() - began_s) / len(first), 1e-9)
    # With one user all rungs take about as long as the first, with many the others are much faster.
    costs = len(RUNGS) if users == 1 else 1 + (len(RUNGS) - 1) / min(users, 3)
    fitting = int((share_s - (clock() - began_s)) / (one_s * costs * NUM_TURNS))
    num = max(min(MOST_WAVES * users, max(fitting, users), len(load.asks)), 1)
    results = _in_turn(rungs, load.asks[:num], users)
    ladder = Ladder(load.name, users, num)
    for rung, result in zip(RUNGS, results, strict=True):
        rate = result.output_tokens / result.duration_s if result.duration_s else 0.0
        before = ladder.steps[-1].output_rate if ladder.steps else rate
        bottom = ladder.steps[0].output_rate if ladder.steps else rate
        ladder.steps.append(
            Step(
                rung,
                rate,
                result.percentile("ttft", 50),
                result.percentile("tpot", 50),
                rate / before if before else 0.0,
                rate / bottom if bottom else 0.0,
            )
        )
    return ladder


def _in_turn(rungs: Rungs, asks: Sequence[Ask], users: int) -> list[LoadResult]:
    """Every rung up the ladder and down again, so that a machine that slows down or warms up favours none."""
    sums = [LoadResult() for _ in RUNGS]
    for turn in range(NUM_TURNS):
        places = range(len(RUNGS)) if turn % 2 == 0 else reversed(range(len(RUNGS)))
        for place in places:
            one = rungs.run(RUNGS[place], asks, users)
            whole = sums[place]
            whole.duration_s += one.duration_s
            whole.output_tokens += one.output_tokens
            whole.num_done += one.num_done
            whole.ttft_ms += one.ttft_ms
            whole.tpot_ms += one.tpot_ms
    return sums


def conclusions(ladders: Sequence[Ladder]) -> list[str]:
    """Which loads triple, and which figures are paper."""
    lines = []
    for ladder in ladders:
        top = max(ladder.steps, key=lambda step: step.output_rate)
        where = f"{ladder.load}, {users_said(ladder.users)}"
        if top.total_gain >= TRIPLE:
            said = f"triples: {top.total_gain:.1f} times one at a time, with {top.rung}"
        elif top.total_gain >= PAPER_GAIN:
            said = f"does not triple: {top.total_gain:.1f} times at best, with {top.rung}"
        else:
            said = "a tripling is a paper number here: no lever gains a tenth"
        lines.append(f"{where}: {said}.{_speculation_word(ladder)}")
    return lines


def _speculation_word(ladder: Ladder) -> str:
    last = ladder.steps[-1]
    if last.gain >= PAPER_GAIN:
        return f" Speculation alone: {last.gain:.2f} times."
    return " Speculation neither pays nor costs here." if last.gain > 0.97 else f" Speculation: {last.gain:.2f} times."


def _line(ladder: Ladder) -> str:
    rates = ", ".join(f"{step.output_rate:.0f}" for step in ladder.steps)
    return f"{ladder.load}, {users_said(ladder.users)}: {rates} tokens/s"
