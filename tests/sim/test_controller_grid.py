"""The controller over the whole grid of drafter, acceptance, load and context: never behind the best fixed length."""

from collections.abc import Callable
from statistics import mean

import numpy as np
import pytest

from threefold.cost import CostCurve
from threefold.draft.controller import Controller

CASES = [  # nobody has a second model draft for one of 135M on a GPU
    ("cpu", "draft_model"), ("cpu", "ngram"), ("packed", "ngram"), ("gpu", "draft_model"), ("gpu", "ngram"),
    ("tiny", "ngram"),
]  # fmt: skip
LOADS = [(1, 100), (4, 100), (4, 2000), (16, 100), (64, 100), (64, 2000), (256, 100)]


@pytest.mark.parametrize("acceptance", [0.2, 0.6, 0.9])
@pytest.mark.parametrize(("device", "method"), CASES)
def test_adaptive_is_as_good_as_the_best_fixed_length(
    simulate: Callable, device: str, method: str, acceptance: float
) -> None:
    for num_rows, context_tokens in LOADS:
        num_steps = 240 if num_rows == 256 else 400
        simulation = simulate(
            device, method, num_rows, acceptance, num_steps, context_tokens, stay=0.9 * (device == "tiny")
        )
        tokens, ms = simulation.run(simulation.controller(), [num_rows] * num_steps)
        steady = range(num_steps // 2, num_steps)
        rate = tokens[steady].sum() / ms[steady].sum()
        load = f"{num_rows} rows, {context_tokens} tokens of context"
        assert rate >= 0.98 * simulation.best_fixed(num_rows, steady), load
        assert rate >= 0.98 * simulation.fixed(0, num_rows, steady), load
        assert tokens.sum() / ms.sum() >= 0.98 * simulation.fixed(0, num_rows, range(num_steps)), load


@pytest.mark.parametrize(("device", "method"), CASES)
def test_a_guessed_curve_mends_itself(simulate: Callable, device: str, method: str) -> None:
    """Without any calibration it takes longer, but it comes close and loses next to nothing on the way."""
    for num_rows in (1, 64):
        num_steps = 800
        simulation = simulate(device, method, num_rows, 0.8, num_steps, 100)
        controller = Controller(CostCurve.uninformed(), 8, has_rounds=method == "draft_model")
        tokens, ms = simulation.run(controller, [num_rows] * num_steps)
        steady = range(600, num_steps)
        assert tokens[steady].sum() / ms[steady].sum() >= 0.95 * simulation.best_fixed(num_rows, steady)
        assert tokens.sum() / ms.sum() >= 0.96 * simulation.fixed(0, num_rows, range(num_steps))


@pytest.mark.parametrize(("device", "method"), CASES)
def test_a_step_in_load_is_settled_within_fifty_steps(simulate: Callable, device: str, method: str) -> None:
    rows_at = [4] * 250 + [64] * 120 + [4] * 120
    for num_rows, changed in ((64, 250), (4, 370)):
        during, settled = range(changed, changed + 50), range(changed + 50, changed + 100)
        shares = []
        for seed in range(3):
            simulation = simulate(device, method, 64, 0.8, len(rows_at), seed=seed, stay=0.9)
            tokens, ms = simulation.run(simulation.controller(), rows_at)
            rate = tokens[settled].sum() / ms[settled].sum()
            shares.append(float(rate / simulation.best_fixed(num_rows, settled)))
            assert tokens[during].sum() / ms[during].sum() >= 0.96 * simulation.fixed(0, num_rows, during)
        assert mean(shares) >= 0.98, (num_rows, shares)


def test_acceptance_that_returns_is_noticed(simulate: Callable) -> None:
    """Drafts were worthless for long, then nearly always right: probes find out."""
    num_steps = 900
    simulation = simulate("gpu", "ngram", 16, 0.05, num_steps)
    good = simulate("gpu", "ngram", 16, 0.9, num_steps).traffic
    for name in ("survival", "num_passing"):
        getattr(simulation.traffic, name)[300:] = getattr(good, name)[300:]
    tokens, ms = simulation.run(simulation.controller(), [16] * num_steps)
    last = range(700, num_steps)
    assert tokens[last].sum() / ms[last].sum() >= 0.95 * simulation.best_fixed(16, last)
    assert tokens[:300].sum() / ms[:300].sum() >= 0.97 * simulation.fixed(0, 16, range(300))


def test_the_live_counterfactual_is_right(simulate: Callable) -> None:
    simulation = simulate("cpu", "ngram", 4, 0.8, 500)
    controller = simulation.controller()
    tokens, ms = simulation.run(controller, [4] * 500)
    steady = range(250, 500)
    true_gain = tokens[steady].sum() / ms[steady].sum() / simulation.fixed(0, 4, steady)
    assert controller.gain_ratio == pytest.approx(true_gain, rel=0.06)
    assert controller.gain_error < 0.15


def test_equal_inputs_give_equal_decisions(simulate: Callable) -> None:
    runs = []
    for _ in range(2):
        simulation = simulate("gpu", "draft_model", 8, 0.6, 120, 300)
        runs.append(simulation.run(simulation.controller(), [8] * 120))
    assert np.array_equal(runs[0][0], runs[1][0])
    assert np.array_equal(runs[0][1], runs[1][1])
