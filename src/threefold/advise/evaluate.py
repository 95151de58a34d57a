"""Levers against the base on samples of a load: each pair meets the same requests and the same error of the curve.

The curve's error is drawn anew for every sample: a few per cent, others at every doubling of the tokens, for the
simulated truth alone, not for what the controller believes. So the spread over samples holds both, the load's and the
curve's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from threefold.advise.curve_executor import Machine
from threefold.advise.levers import Variant
from threefold.advise.replay import MAX_DRAFT, Replay
from threefold.advise.result import LoadResult
from threefold.advise.simulate import Simulation
from threefold.advise.trace import TraceRequest
from threefold.advise.traffic import SimRequest, another, assumed_drafts, shared_lengths, to_traffic
from threefold.cost import CostCurve
from threefold.cost_fit import NOISE
from threefold.draft.controller import Controller
from threefold.draft.policy import DraftPolicy

ROW_STEPS = 24_000
"""Output tokens simulated for one figure, about; a fraction of a second."""
MOST_PROMPT_TOKENS = 3_000_000
OCTAVES = 20
"""A curve's error is drawn for so many doublings of a step's tokens."""
WAVES = 4
"""Requests a user, where that does not take too long …"""
LEAST_REQUESTS = 64
"""… and at least so many in all, where there are few users."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A lever and the base on the same sample."""

    base: LoadResult
    moved: LoadResult

    @property
    def change(self) -> float:
        """Of output tokens a second."""
        return self.moved.output_rate / self.base.output_rate - 1 if self.base.output_rate else 0.0

    def latency_change(self, name: str) -> float:
        """Of the median ttft or tpot."""
        before = self.base.percentile(name, 50)
        return self.moved.percentile(name, 50) / before - 1 if before else 0.0


class Evaluator:
    """Simulates variants of the engine over samples of a trace.

    Args:
        trace: the load.
        replayed: what drafters do for it.
        draft_acceptance: assumed of a draft model.
        row_steps: output tokens for one figure.
        seed: of samples and of the curve's error.
    """

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        replayed: Replay,
        *,
        draft_acceptance: float,
        row_steps: int = ROW_STEPS,
        seed: int = 0,
    ) -> None:
        self._trace = list(trace)
        self._traffic: dict[str | None, list[SimRequest]] = {
            name: to_traffic(self._trace, replayed, name) for name in (None, *replayed.drafts)
        }
        self._traffic["model"] = [
            sim._replace(drafts=assumed_drafts(draft_acceptance, MAX_DRAFT, sim.source.num_output_tokens, sim.serial))
            for sim in self._traffic[None]
        ]
        self._shared = shared_lengths(self._trace)
        self._has_times = all(one.arrival_s is not None for one in self._trace)
        self._row_steps = row_steps
        self._seed = seed
        self._policies: dict[str, DraftPolicy] = {}

    def run(self, variant: Variant, concurrency: int, sample: int, places: Sequence[int] | None = None) -> LoadResult:
        """One variant at so many users, on one sample of the load, or on these requests of it."""
        if places is None:
            places = self.places(sample, self._num_requests(concurrency))
        traffic = self._requests(variant.drafter, places)
        machine = self._wrong(variant.machine, sample)
        simulation = Simulation(machine, variant.settings, self._policy(variant))
        return simulation.run(traffic, concurrency)

    def own_concurrency(self, base: Variant) -> tuple[float, LoadResult] | None:
        """Requests in flight when the log comes at its own rate, and the result; None without times."""
        if not self._has_times:
            return None
        num_output = num_prompt = 0
        num = 0
        for one in self._trace:
            num_output += one.num_output_tokens
            num_prompt += one.num_prompt_tokens
            num += 1
            if num_output > 20 * self._row_steps or num_prompt > 10 * MOST_PROMPT_TOKENS:
                break
        result = Simulation(base.machine, base.settings).run(self._traffic[None][:num])
        return result.mean_running, result

    def _policy(self, variant: Variant) -> DraftPolicy | None:
        """The controller lives on from sample to sample, as it would in a server."""
        if variant.drafter is None:
            return None
        if variant.name not in self._policies:
            believed = CostCurve.from_dict(variant.machine.curve.to_dict())
            self._policies[variant.name] = Controller(believed, MAX_DRAFT, has_rounds=variant.drafter == "draft_model")
        return self._policies[variant.name]

    def _requests(self, drafter: str | None, places: Sequence[int]) -> list[SimRequest]:
        """Those at the places; who comes again comes as another like him, or the prefix cache would know him."""
        traffic, seen = self._traffic[drafter], set[int]()
        chosen: list[SimRequest] = []
        for place in places:
            sim = traffic[place]
            if place in seen:
                sim = another(sim, self._shared[place], len(traffic) + len(chosen))
            seen.add(place)
            chosen.append(sim)
        return chosen

    def places(self, sample: int, num: int) -> list[int]:
        """Places of a sample's requests: a stretch of a log with times, else a draw; a short log comes again."""
        dice = random.Random(self._seed * 1009 + sample)  # noqa: S311 a sample, no secret
        if num >= len(self._trace):
            places: list[int] = []
            while len(places) < num:
                whole = list(range(len(self._trace)))
                places += whole if self._has_times else dice.sample(whole, len(whole))
            return places[:num]
        if self._has_times:
            start = dice.randrange(len(self._trace) - num + 1)
            return list(range(start, start + num))
        return dice.sample(range(len(self._trace)), num)

    def most_requests(self) -> int:
        """As many as one figure may take time for."""
        mean_output = max(sum(one.num_output_tokens for one in self._trace) / len(self._trace), 1.0)
        mean_prompt = max(sum(one.num_prompt_tokens for one in self._trace) / len(self._trace), 1.0)
        return max(int(min(self._row_steps / mean_output, MOST_PROMPT_TOKENS / mean_prompt)), 8)

    def _num_requests(self, concurrency: int) -> int:
        """A few for every user, fewer when they are long, never fewer than one and a half."""
        wanted = max(WAVES * concurrency, LEAST_REQUESTS)
        return max(min(wanted, self.most_requests()), int(1.5 * concurrency))

    def _wrong(self, machine: Machine, sample: int) -> Machine:
        """The machine with an error along its curves; the first sample has none."""
        if sample == 0:
            return machine
        dice = np.random.default_rng(self._seed + sample)
        curve = _wrong_curve(machine.curve, dice)
        return replace(
            machine, curve=curve, prompts=None if machine.prompts is None else _wrong_curve(machine.prompts, dice)
        )


def _wrong_curve(curve: CostCurve, dice: np.random.Generator) -> CostCurve:
    """The curve with an error that is another one at twice the tokens, and the same at nearly as many."""
    data = curve.to_dict()
    scatter = dice.normal(0.0, NOISE, OCTAVES + 1)
    tokens, ms = np.array(data["knots"], dtype=np.float64).T
    off = np.interp(np.log2(tokens), np.arange(OCTAVES), scatter[:-1])
    rising = np.maximum.accumulate(ms * np.exp(off))
    data["knots"] = np.stack([tokens, rising], axis=1).tolist()
    data["kv_token_ms"] *= math.exp(float(scatter[-1]))
    return CostCurve.from_dict(data)
