"""Predicted against measured: levers tried on the loaded engine with the same requests.

Each cell is a lever, off and on, at a number of users of one load. All that a number of users needs is run in turn,
there and back, several times, more often where runs scatter, and a run serves every lever that it is a side of; the
simulator was asked the same question. What comes of it says how far the advice can be trusted here.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol

from threefold.advise.drive import Ask
from threefold.advise.evaluate import Evaluator
from threefold.advise.levers import QUANTISED, Variant
from threefold.advise.logged import BLOCK_TOKENS
from threefold.advise.result import LoadResult
from threefold.advise.trace import TraceRequest
from threefold.advise.traffic import shared_lengths
from threefold.advise.verdict import users_said
from threefold.advise.verify_cell import Cell, contrast, scatter
from threefold.errors import ConfigError

WAVES = 3
"""Requests a user where a knee is looked for …"""
CELL_WAVES = 2
"""… and in a cell, which is measured several times …"""
LEAST_REQUESTS = 10
"""… and at least so many."""
FAR = 0.025
"""Standard error of a variant's rate beyond which all are measured once more …"""
MORE_ROUNDS = 2
"""… and so often at most."""
LIVE = ("prefix caching", "ngram", "suffix")
"""Levers that need no other weights."""


class Measure(Protocol):
    """Runs a variant for real; engine_measure.py has the one that does."""

    def run(self, variant: Variant, asks: Sequence[Ask], users: int) -> LoadResult:
        """Answer the requests with so many users, on a fresh engine; the controller alone lives on."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A lever as two variants that differ in it alone."""

    lever: str
    off: Variant
    on: Variant


class Verifier:
    """Measures what an evaluator predicts, for one load.

    Args:
        measure: runs variants.
        trace: the load; requests that are known by block names only are asked with made-up tokens that share as these.
        evaluator: of the same trace.
        load: its name, where there are several.

    Attributes:
        has_text: what is asked is the load's own text, so that what is answered is, too.
    """

    def __init__(self, measure: Measure, trace: Sequence[TraceRequest], evaluator: Evaluator, load: str = "") -> None:
        self.load = load
        self.has_text = all(one.text is not None and one.text.is_own for one in trace)
        self._measure = measure
        self._evaluator = evaluator
        self._asks = [_ask(place, one) for place, one in enumerate(trace)]
        self._shared = shared_lengths(trace)
        self._rates: dict[tuple[str, int], list[float]] = {}

    @property
    def most_users(self) -> int:
        """More would have nothing of their own to ask."""
        return len(self._asks)

    def measured(self, variant: Variant, users: int) -> LoadResult:
        """One variant, a few requests a user; where the load is too short for that its requests come again."""
        times: Counter[int] = Counter()
        asks = []
        for place in self._places(WAVES * users):
            asks.append(_again(self._asks[place], self._shared[place] * BLOCK_TOKENS, times[place]))
            times[place] += 1
        return self._measure.run(variant, asks, users)

    def cells(self, contrasts: Sequence[Contrast], users: int, rounds: int) -> list[Cell]:
        """Predict and measure, each request once; what was measured with so many users before is not measured again.

        Raises:
            ConfigError: no request could be answered.
        """
        variants = {one.name: one for contrast in contrasts for one in (contrast.off, contrast.on)}
        self.measure(list(variants.values()), users, rounds)
        places = self._asked_places(users)
        said = {name: self._evaluator.run(one, users, 0, places).output_rate for name, one in variants.items()}
        return [self._cell(contrast, users, len(places), said) for contrast in contrasts]

    def measure(self, variants: Sequence[Variant], users: int, rounds: int) -> None:
        """Run what was not run with so many users before; `cells` takes it from there.

        Raises:
            ConfigError: no request could be answered.
        """
        new = [one for one in variants if (one.name, users) not in self._rates]
        self._rates |= self._measured_rates(new, self._asked_places(users), users, rounds)

    def _asked_places(self, users: int) -> list[int]:
        """Each request once."""
        return self._places(CELL_WAVES * users)[: len(self._asks)]

    def _places(self, num: int) -> list[int]:
        return self._evaluator.places(0, max(num, LEAST_REQUESTS))

    def _measured_rates(
        self, variants: Sequence[Variant], places: Sequence[int], users: int, rounds: int
    ) -> dict[tuple[str, int], list[float]]:
        """All variants in turn, there and back; while they scatter, a few rounds more."""
        asks = [self._asks[place] for place in places]
        rates: dict[tuple[str, int], list[float]] = {(one.name, users): [] for one in variants}
        for one in variants:
            if one is variants[0] or one.drafter is not None:  # warm; a controller's first look
                self._measure.run(one, asks[:users], users)
        turn = 0
        while turn < rounds or (1 < rounds and turn < rounds + MORE_ROUNDS and _scatter_far(rates.values())):
            for one in variants if turn % 2 == 0 else reversed(variants):
                rate = self._measure.run(one, asks, users).output_rate
                if not rate:
                    raise ConfigError(
                        f"{self.load or 'the log'}: no request could be answered: each is longer than fits"
                    )
                rates[one.name, users].append(rate)
            turn += 1
        return rates

    def _cell(self, one: Contrast, users: int, num_requests: int, said: dict[str, float]) -> Cell:
        off, on = (self._rates[variant.name, users] for variant in (one.off, one.on))
        beside = [rates for (_, count), rates in self._rates.items() if count == users]
        measured, spread = contrast(off, on, _common_scatter(beside))
        return Cell(
            one.lever,
            users,
            num_requests,
            said[one.on.name] / said[one.off.name] - 1,
            measured,
            spread,
            said[one.off.name],
            statistics.median(off),
            self.load,
        )


def _common_scatter(runs: Iterable[Sequence[float]]) -> float:
    """Of one run, by all variants together."""
    scatters = [one for rates in runs if (one := scatter(rates)) is not None]
    return math.sqrt(sum(one * one for one in scatters) / len(scatters)) if scatters else 0.0


def _scatter_far(runs: Iterable[Sequence[float]]) -> bool:
    """Whether some variant's middle is not known well enough."""
    return any((scatter(rates) or 0.0) / math.sqrt(len(rates)) > FAR for rates in runs)


def contrast_of(base: Variant, lever: Variant) -> Contrast:
    """A lever against the engine as it is; what the engine has already is contrasted with its absence."""
    is_in_base = not lever.settings.has_prefix_cache
    return Contrast(lever.name, *((lever, base) if is_in_base else (base, lever)))


def batching(base: Variant, users: int) -> list[Contrast]:
    """Twice as many running requests, the step by which the knee is looked for; nothing for one user."""
    if users < 2:
        return []
    half = users // 2
    halved = replace(base, name=f"max_num_seqs {half}", settings=replace(base.settings, max_num_seqs=half))
    return [Contrast(f"max_num_seqs {half} → {users}", halved, base)]


def verify(
    loads: Sequence[Verifier],
    base: Variant,
    levers: Sequence[Variant],
    users: Sequence[int],
    *,
    rounds: int,
    say: Callable[[str], None],
) -> list[Cell]:
    """All cells, and Ctrl-C keeps what was measured.

    Levers that need other weights come last, one after another: the model is loaded anew for each, and set against the
    base as it was measured before.
    """
    cells: list[Cell] = []
    live = [contrast_of(base, lever) for lever in levers if lever.name in LIVE]
    passes = [(True, live), *((False, [contrast_of(base, lever)]) for lever in levers if lever.name in QUANTISED)]
    try:
        for is_first, contrasts in passes:
            for load, count in ((load, count) for load in loads for count in users):
                if count > load.most_users:
                    if is_first:
                        say(f"{load.load or 'the log'}: {load.most_users} requests are too few for {users_said(count)}")
                    continue
                wanted = [*batching(base, count), *contrasts] if is_first else contrasts
                cells += _told(load.cells(wanted, count, rounds), say)
    except KeyboardInterrupt:
        say("interrupted; what was measured is kept")
    return cells


def _told(cells: list[Cell], say: Callable[[str], None]) -> list[Cell]:
    for cell in cells:
        name = f"{cell.load}: {cell.lever}" if cell.load else cell.lever
        say(f"{name}, {users_said(cell.users)}: predicted {cell.predicted:+.0%}, measured {cell.measured:+.0%}")
    return cells


def _ask(place: int, one: TraceRequest) -> Ask:
    prompt = one.text.prompt if one.text is not None and one.text.is_own else _made_up(place, one)
    return Ask(prompt, one.num_output_tokens, one.temperature or 0.0)


def _again(ask: Ask, num_shared: int, times: int) -> Ask:
    """A request that somebody else might send: a word of what it does not share is another one."""
    prompt = ask.token_ids
    if not times or num_shared >= len(prompt):
        return ask
    other = prompt[(num_shared + 1 + 7 * times) % len(prompt)]
    return ask._replace(token_ids=[*prompt[:num_shared], other, *prompt[num_shared + 1 :]])


def _made_up(place: int, one: TraceRequest) -> list[int]:
    """Tokens for a prompt of which the log has lengths and names of blocks: equal where the names are."""
    own = f"request {place} block {{}}"
    tokens: list[int] = []
    for number in range(-(-one.num_prompt_tokens // BLOCK_TOKENS)):
        name = str(one.names[number]) if number < len(one.names) else own.format(number)
        tokens += blake2b(name.encode(), digest_size=BLOCK_TOKENS).digest()
    return tokens[: one.num_prompt_tokens]
