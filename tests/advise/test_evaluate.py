import random

import numpy as np
import pytest

from threefold.advise.evaluate import Evaluator, _wrong_curve
from threefold.advise.levers import base_variant
from threefold.advise.log import read_logs
from threefold.advise.replay import replay
from threefold.advise.trace import to_trace
from threefold.cost import CostCurve, StepShape


@pytest.fixture
def evaluator(write_log, encoder):
    dice = random.Random(7)
    entries = [
        {"prompt": " ".join(f"w{dice.randrange(9999)}" for _ in range(40)), "output": "a b c d"} for _ in range(10)
    ]
    trace = to_trace(read_logs([write_log(entries)]), encoder)
    return Evaluator(trace, replay(trace), draft_acceptance=0.5, row_steps=2000)


def test_samples_can_be_had_again(evaluator, facts):
    base = base_variant(facts)
    assert evaluator.run(base, 2, 1).to_dict() == evaluator.run(base, 2, 1).to_dict()
    assert evaluator.run(base, 2, 1).output_rate != evaluator.run(base, 2, 2).output_rate, "each has its own error"


def test_a_short_log_comes_again_without_meeting_itself_in_the_cache(evaluator, facts):
    result = evaluator.run(base_variant(facts), 8, 0)
    assert result.num_done > 10
    assert result.stats.prefix_hits == 0


def test_places(evaluator):
    assert sorted(evaluator.places(0, 10)) == list(range(10))
    assert len(evaluator.places(0, 25)) == 25
    assert evaluator.places(1, 4) != evaluator.places(2, 4)
    assert len(set(evaluator.places(1, 4))) == 4


def test_without_times_there_is_no_own_rate(evaluator, facts):
    assert evaluator.own_concurrency(base_variant(facts)) is None


def test_an_error_of_the_curve_is_no_cliff():
    """Knots at 4,095 and 4,096 tokens were off by errors of their own: beyond, a token took milliseconds."""
    curve = CostCurve([(1, 5.0), (2048, 29.0), (4095, 58.0), (4096, 58.0)])
    dice = np.random.default_rng(1)
    for _ in range(20):
        wrong = _wrong_curve(curve, dice)
        for num_tokens in (1, 2048, 8192):
            shape = StepShape(num_tokens, 1, 0)
            assert 0.6 < wrong.forward_ms(shape) / curve.forward_ms(shape) < 1.6
