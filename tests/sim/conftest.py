"""Speculation on a virtual clock: devices whose costs were measured, drafters whose every chance is known.

Acceptance is sampled, throughput is reckoned in expectation, so a policy is not judged by its luck. Every policy meets
the same drafts and the same random numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.controller import Controller, RowDraft

MAX_DRAFT = 8
FIXED_LENGTHS = (0, 2, 4, 6, 8)
SIGHT_ROWS = 16
"""Up to so many rows are looked at before they are asked, where steps overlap."""


@dataclass(frozen=True)
class Device:
    knots: tuple[tuple[float, float], ...]
    kv_token_ms: float
    pair_ms: float
    model_round_ms: float
    model_token_ms: float
    lookup_ms: float = 0.003
    start_ms: float = 0.0
    """What asking at all costs: of the host, and where steps overlap the device waits for it."""
    has_sight: bool = False

    def curve(self, error: float = 0.0, seed: int = 5) -> CostCurve:
        """The true curve, or one calibrated with this relative error at every knot."""
        scatter = np.random.default_rng(seed).normal(0.0, 1.0, len(self.knots))
        ms = np.maximum.accumulate([ms * (1.0 + error * z) for (_, ms), z in zip(self.knots, scatter, strict=True)])
        tokens = [n for n, _ in self.knots]
        knots = list(zip(tokens, ms.tolist(), strict=True))
        return CostCurve(knots, kv_token_ms=self.kv_token_ms, pair_ms=self.pair_ms)


DEVICES = {
    "cpu": Device(  # a model of 135M, weights in bf16
        ((1, 12.7), (8, 13.2), (16, 18.6), (32, 29.7), (64, 50), (96, 72), (128, 91), (256, 175), (2304, 1575)),
        kv_token_ms=1e-3,
        pair_ms=5e-4,
        model_round_ms=3.0,
        model_token_ms=0.3,
    ),
    "packed": Device(  # the same model, four bits a weight: less for one token, about as much for each further one
        (
            (1, 8.3),
            (2, 10),
            (4, 10.6),
            (8, 10.8),
            (16, 14.7),
            (32, 23.3),
            (64, 38.8),
            (72, 43.5),
            (128, 73),
            (2304, 1250),
        ),
        kv_token_ms=1e-3,
        pair_ms=5e-4,
        model_round_ms=2.0,
        model_token_ms=0.2,
        lookup_ms=0.01,
        start_ms=0.15,
    ),
    "gpu": Device(  # a model of 8B
        ((1, 4), (64, 4.3), (128, 4.6), (192, 5.6), (256, 6.5), (512, 11.8), (1024, 24.2), (2048, 44.8), (4096, 87.9)),
        kv_token_ms=3.4e-5,
        pair_ms=0.0,
        model_round_ms=0.9,
        model_token_ms=0.003,
    ),
    "tiny": Device(  # a model of 135M on a GPU: a step is as short as what the host does for it
        ((1, 0.84), (16, 0.94), (64, 1.1), (128, 1.35), (256, 1.85), (512, 2.6), (1024, 4.7), (4096, 19)),
        kv_token_ms=1e-5,
        pair_ms=0.0,
        model_round_ms=0.3,
        model_token_ms=0.003,
        lookup_ms=0.015,
        start_ms=0.6,
        has_sight=True,
    ),
}


class Traffic:
    """What drafters would propose for num_rows rows at each step, and what would become of it.

    stay: share of the steps in which a row finds again what it found in the step before, where drafts are looked up.
    """

    def __init__(
        self, method: str, num_rows: int, acceptance: float, num_steps: int, *, seed: int = 0, stay: float = 0.0
    ) -> None:
        rng = np.random.default_rng(seed)
        likely = np.clip(acceptance + rng.normal(0.0, 0.1, num_rows), 0.02, 0.98)
        high = np.minimum(likely * 1.3, 0.97)
        low = np.maximum(2 * likely - high, 0.02)
        if method == "draft_model":  # each token is easy or hard; the drafter thinks too well of both
            chance = np.where(rng.random((num_steps, num_rows, MAX_DRAFT)) < 0.5, high[:, None], low[:, None])
            estimate = np.sqrt(chance)
            self.has_draft = np.ones((num_steps, num_rows), dtype=bool)
        else:  # three rows in ten find a match, a good one or a poor one
            is_good = rng.random((num_steps, num_rows, 1)) < 0.5
            self.has_draft = rng.random((num_steps, num_rows)) < 0.3
            for step in range(1, num_steps):
                is_same = rng.random(num_rows) < stay
                is_good[step, is_same] = is_good[step - 1, is_same]
                self.has_draft[step, is_same] = self.has_draft[step - 1, is_same]
            chance = np.repeat(np.where(is_good, high[:, None], low[:, None]), MAX_DRAFT, axis=2)
            estimate = np.repeat(np.where(is_good, 0.8, 0.5), MAX_DRAFT, axis=2)
        self.method = method
        self.likely = float(likely.mean())
        self.survival = np.cumprod(chance, axis=2)
        self.estimate = np.cumprod(estimate, axis=2)
        self.num_passing = np.cumprod(rng.random(chance.shape) < chance, axis=2).sum(axis=2)
        self.noise = np.exp(rng.normal(0.0, 0.05, num_steps))


class Simulation:
    """Steps of an engine whose every cost and chance is known."""

    def __init__(self, device: Device, traffic: Traffic, context_tokens: int) -> None:
        self.curve = device.curve()
        self.device = device
        self.traffic = traffic
        self.context_tokens = context_tokens
        self.num_asked = 0
        self.num_verified = 0

    def controller(self, seed: int = 5) -> Controller:
        """As an engine makes one: calibrated with an error of 5 %, and a draft model tried out."""
        curve, traffic = self.device.curve(0.05, seed), self.traffic
        if traffic.method != "draft_model":
            return Controller(curve, MAX_DRAFT, has_rounds=False, sight_rows=SIGHT_ROWS if self.device.has_sight else 0)
        curve.observe_draft(1, MAX_DRAFT, MAX_DRAFT, self.draft_ms([MAX_DRAFT]))
        tried = traffic.likely + float(np.random.default_rng(seed).normal(0.0, 0.05))
        return Controller(curve, MAX_DRAFT, prior_chance=min(max(tried, 0.05), 0.97))

    def shape(self, num_rows: int, num_drafts: int = 0) -> StepShape:
        return StepShape(num_rows + num_drafts, num_rows, num_rows * self.context_tokens)

    def draft_ms(self, asked: list[int]) -> float:
        start_ms = self.device.start_ms if any(asked) else 0.0
        if self.traffic.method != "draft_model":
            return start_ms + self.device.lookup_ms * sum(length > 0 for length in asked)
        rounds = max(asked, default=0)
        return start_ms + rounds * self.device.model_round_ms + sum(asked) * self.device.model_token_ms

    def fixed(self, length: int, num_rows: int, steps: range) -> float:
        """Tokens a millisecond when every row always asks for and verifies `length` tokens; the first step has none."""
        tokens = ms = 0.0
        for step in steps:
            given = self.traffic.has_draft[step, :num_rows] & (step > 0)
            survival = self.traffic.survival[step, :num_rows, :length].sum(axis=1)
            tokens += num_rows + float((survival * given).sum())
            ms += self.curve.forward_ms(self.shape(num_rows, length * int(given.sum())))
            ms += self.draft_ms([length] * num_rows)
        return tokens / ms

    def best_fixed(self, num_rows: int, steps: range) -> float:
        return max(self.fixed(length, num_rows, steps) for length in FIXED_LENGTHS)

    def run(self, controller: Controller, rows_at: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Expected tokens and true ms of each step, with rows_at[step] requests running."""
        running = 0
        asked: list[int] = []
        history = []
        for step, num_rows in enumerate(rows_at):
            for request_id in range(running, num_rows):
                controller.start(request_id, MAX_DRAFT)
            for request_id in range(num_rows, running):
                controller.stop(request_id)
            asked = (asked + [0] * num_rows)[:num_rows]
            running = num_rows
            history.append(self._step(controller, step, num_rows, asked))
        tokens, ms = np.array(history).T
        return tokens, ms

    def _step(self, controller: Controller, step: int, num_rows: int, asked: list[int]) -> tuple[float, float]:
        traffic = self.traffic
        rows = [
            RowDraft(i, tuple(traffic.estimate[step, i, : asked[i]].tolist()), traffic.method, self.context_tokens)
            for i in range(num_rows)
            if asked[i] and traffic.has_draft[step, i]
        ]
        wanted = controller.appetites(range(num_rows))
        asked[:] = [wanted.get(i, 0) for i in range(num_rows)]
        counts = controller.choose(rows, self.shape(num_rows))
        expected, committed = float(num_rows), num_rows
        for row, count in zip(rows, counts, strict=True):
            if count:
                accepted = min(int(traffic.num_passing[step, row.request_id]), count)
                committed += accepted
                expected += float(traffic.survival[step, row.request_id, :count].sum())
                controller.observe(row.request_id, row.drafter, count, accepted)
        shape = self.shape(num_rows, sum(counts))
        forward_ms, draft_ms = self.curve.forward_ms(shape), self.draft_ms(asked)
        noise = traffic.noise[step]
        if self.device.has_sight and num_rows <= SIGHT_ROWS and not wanted:
            rest = traffic.survival[step, :num_rows, 2:].sum(axis=1) * traffic.has_draft[step, :num_rows]
            controller.glimpse(dict(enumerate(rest.tolist())))
        controller.observe_step(shape, forward_ms * noise, draft_ms * noise, committed)
        controller.catch_up()
        self.num_asked += len(wanted)
        self.num_verified += sum(counts)
        return expected, forward_ms + draft_ms


@pytest.fixture
def simulate() -> Callable[..., Simulation]:
    """(device, method, num_rows, acceptance, num_steps, context_tokens=200, seed, stay) to a simulation."""

    def make(
        device: str,
        method: str,
        num_rows: int,
        acceptance: float,
        num_steps: int,
        context_tokens: int = 200,
        **options: float,
    ) -> Simulation:
        return Simulation(DEVICES[device], Traffic(method, num_rows, acceptance, num_steps, **options), context_tokens)

    return make
