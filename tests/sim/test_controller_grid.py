"""The controller over the whole grid of drafter, acceptance, load and context: never behind the best fixed length.

Costs are those measured on a CPU (135M model) and on a GPU (8B model); acceptance is sampled, throughput is reckoned
in expectation, so a policy is not judged by its luck. Every policy meets the same drafts and the same random numbers.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from threefold.cost import CostCurve, StepShape
from threefold.draft.controller import Controller, RowDraft

MAX_DRAFT = 8
FIXED_LENGTHS = (0, 2, 4, 6, 8)


@dataclass(frozen=True)
class Device:
    knots: tuple[tuple[float, float], ...]
    kv_token_ms: float
    pair_ms: float
    model_round_ms: float
    model_token_ms: float
    lookup_ms: float = 0.003
    start_ms: float = 0.0
    """What asking at all costs: where steps overlap, the device waits for the host."""

    def curve(self, error: float = 0.0) -> CostCurve:
        """The true curve, or one calibrated with this relative error at every knot."""
        scatter = np.random.default_rng(5).normal(0.0, 1.0, len(self.knots))
        ms = np.maximum.accumulate([ms * (1.0 + error * z) for (_, ms), z in zip(self.knots, scatter, strict=True)])
        tokens = [n for n, _ in self.knots]
        knots = list(zip(tokens, ms.tolist(), strict=True))
        return CostCurve(knots, kv_token_ms=self.kv_token_ms, pair_ms=self.pair_ms)


CPU = Device(
    ((1, 12.7), (8, 13.2), (16, 18.6), (32, 29.7), (64, 50.0), (96, 72.0), (128, 91.0), (256, 175.0), (2304, 1575.0)),
    kv_token_ms=1e-3,
    pair_ms=5e-4,
    model_round_ms=3.0,
    model_token_ms=0.3,
)
GPU = Device(
    ((1, 4.0), (64, 4.3), (128, 4.6), (192, 5.6), (256, 6.5), (512, 11.8), (1024, 24.2), (2048, 44.8), (4096, 87.9)),
    kv_token_ms=3.4e-5,
    pair_ms=0.0,
    model_round_ms=0.9,
    model_token_ms=0.003,
)
TINY = Device(
    ((1, 0.9), (64, 1.0), (128, 1.3), (256, 2.0), (512, 3.0), (1024, 5.0), (2048, 9.5), (4096, 19.0)),
    kv_token_ms=1e-5,
    pair_ms=0.0,
    model_round_ms=0.3,
    model_token_ms=0.003,
    lookup_ms=0.015,
    start_ms=0.6,
)
"""A model of 135M on a GPU: a step is as short as what the host does for it."""
DEVICES = {"cpu": CPU, "gpu": GPU, "tiny": TINY}
CASES = [  # nobody has a second model draft for one of 135M on a GPU
    ("cpu", "draft_model"), ("cpu", "ngram"), ("gpu", "draft_model"), ("gpu", "ngram"), ("tiny", "ngram")
]  # fmt: skip


class Traffic:
    """What drafters would propose for num_rows rows at each step, and what would become of it."""

    def __init__(self, method: str, num_rows: int, acceptance: float, num_steps: int) -> None:
        rng = np.random.default_rng(0)
        likely = np.clip(acceptance + rng.normal(0.0, 0.1, num_rows), 0.02, 0.98)
        high = np.minimum(likely * 1.3, 0.97)
        low = np.maximum(2 * likely - high, 0.02)
        if method == "draft_model":  # each token is easy or hard; the drafter thinks too well of both
            chance = np.where(rng.random((num_steps, num_rows, MAX_DRAFT)) < 0.5, high[:, None], low[:, None])
            estimate = np.sqrt(chance)
            self.has_draft = np.ones((num_steps, num_rows), dtype=bool)
        else:  # three rows in ten find a match, a good one or a poor one
            is_good = rng.random((num_steps, num_rows, 1)) < 0.5
            chance = np.repeat(np.where(is_good, high[:, None], low[:, None]), MAX_DRAFT, axis=2)
            estimate = np.repeat(np.where(is_good, 0.8, 0.5), MAX_DRAFT, axis=2)
            self.has_draft = rng.random((num_steps, num_rows)) < 0.3
        self.method = method
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

    def shape(self, num_rows: int, num_drafts: int = 0) -> StepShape:
        return StepShape(num_rows + num_drafts, num_rows, num_rows * self.context_tokens)

    def draft_ms(self, asked: list[int]) -> float:
        start_ms = self.device.start_ms if any(asked) else 0.0
        if self.traffic.method != "draft_model":
            return start_ms + self.device.lookup_ms * sum(length > 0 for length in asked)
        rounds = max(asked, default=0)
        return start_ms + rounds * self.device.model_round_ms + sum(asked) * self.device.model_token_ms

    def fixed(self, length: int, num_rows: int, steps: range) -> float:
        """Tokens a millisecond when every row always drafts and verifies `length` tokens."""
        tokens = ms = 0.0
        for step in steps:
            given = self.traffic.has_draft[step, :num_rows]
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
        controller.observe_step(shape, forward_ms * noise, draft_ms * noise, committed)
        return expected, forward_ms + draft_ms


def controller_for(method: str, curve: CostCurve) -> Controller:
    return Controller(curve, MAX_DRAFT, has_rounds=method == "draft_model")


LOADS = [(1, 100), (4, 100), (4, 2000), (16, 100), (64, 100), (64, 2000), (256, 100)]


@pytest.mark.parametrize("acceptance", [0.2, 0.6, 0.9])
@pytest.mark.parametrize(("device", "method"), CASES)
def test_adaptive_is_as_good_as_the_best_fixed_length(device: str, method: str, acceptance: float) -> None:
    for num_rows, context_tokens in LOADS:
        num_steps = 240 if num_rows == 256 else 400
        simulation = Simulation(DEVICES[device], Traffic(method, num_rows, acceptance, num_steps), context_tokens)
        controller = controller_for(method, DEVICES[device].curve(error=0.05))
        tokens, ms = simulation.run(controller, [num_rows] * num_steps)
        steady = range(num_steps // 2, num_steps)
        rate = tokens[steady].sum() / ms[steady].sum()
        load = f"{num_rows} rows, {context_tokens} tokens of context"
        assert rate >= 0.98 * simulation.best_fixed(num_rows, steady), load
        assert rate >= 0.98 * simulation.fixed(0, num_rows, steady), load
        assert tokens.sum() / ms.sum() >= 0.94 * simulation.fixed(0, num_rows, range(num_steps)), load


@pytest.mark.parametrize(("device", "method"), CASES)
def test_a_guessed_curve_mends_itself(device: str, method: str) -> None:
    """Without any calibration it takes longer, but it comes close and loses next to nothing on the way."""
    for num_rows in (1, 64):
        num_steps = 800
        simulation = Simulation(DEVICES[device], Traffic(method, num_rows, 0.8, num_steps), 100)
        controller = controller_for(method, CostCurve.uninformed())
        tokens, ms = simulation.run(controller, [num_rows] * num_steps)
        steady = range(600, num_steps)
        assert tokens[steady].sum() / ms[steady].sum() >= 0.95 * simulation.best_fixed(num_rows, steady)
        assert tokens.sum() / ms.sum() >= 0.96 * simulation.fixed(0, num_rows, range(num_steps))


@pytest.mark.parametrize(("device", "method"), CASES)
def test_a_step_in_load_is_settled_within_fifty_steps(device: str, method: str) -> None:
    rows_at = [4] * 250 + [64] * 120 + [4] * 120
    simulation = Simulation(DEVICES[device], Traffic(method, 64, 0.8, len(rows_at)), 200)
    tokens, ms = simulation.run(controller_for(method, DEVICES[device].curve(error=0.05)), rows_at)
    for num_rows, changed in ((64, 250), (4, 370)):
        settled = range(changed + 50, changed + 100)
        rate = tokens[settled].sum() / ms[settled].sum()
        assert rate >= 0.97 * simulation.best_fixed(num_rows, settled), (num_rows, changed)
        during = range(changed, changed + 50)
        assert tokens[during].sum() / ms[during].sum() >= 0.9 * simulation.fixed(0, num_rows, during)


def test_acceptance_that_returns_is_noticed() -> None:
    """Drafts were worthless for long, then nearly always right: probes find out."""
    num_steps = 900
    traffic = Traffic("ngram", 16, 0.05, num_steps)
    good = Traffic("ngram", 16, 0.9, num_steps)
    for name in ("survival", "num_passing"):
        getattr(traffic, name)[300:] = getattr(good, name)[300:]
    simulation = Simulation(GPU, traffic, 200)
    tokens, ms = simulation.run(controller_for("ngram", GPU.curve()), [16] * num_steps)
    last = range(700, num_steps)
    assert tokens[last].sum() / ms[last].sum() >= 0.95 * simulation.best_fixed(16, last)
    assert tokens[:300].sum() / ms[:300].sum() >= 0.97 * simulation.fixed(0, 16, range(300))


def test_the_live_counterfactual_is_right() -> None:
    simulation = Simulation(CPU, Traffic("ngram", 4, 0.8, 500), 200)
    controller = controller_for("ngram", CPU.curve(error=0.05))
    tokens, ms = simulation.run(controller, [4] * 500)
    steady = range(250, 500)
    true_gain = tokens[steady].sum() / ms[steady].sum() / simulation.fixed(0, 4, steady)
    assert controller.gain_ratio == pytest.approx(true_gain, rel=0.06)
    assert controller.gain_error < 0.15


def test_equal_inputs_give_equal_decisions() -> None:
    runs = [
        Simulation(GPU, Traffic("draft_model", 8, 0.6, 120), 300).run(
            controller_for("draft_model", GPU.curve(0.05)), [8] * 120
        )
        for _ in range(2)
    ]
    assert np.array_equal(runs[0][0], runs[1][0])
    assert np.array_equal(runs[0][1], runs[1][1])
