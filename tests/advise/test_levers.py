from dataclasses import replace

import pytest

from threefold.advise.levers import Assumptions, base_variant, lever_variants, scaled, scaled_curve
from threefold.cost import CostCurve, StepShape


def by_name(facts, **assumed):
    return {one.name: one for one in lever_variants(facts, {"ngram": 0.01, "suffix": 0.02}, Assumptions(**assumed))}


def test_every_lever_is_there_once(facts):
    assert list(by_name(facts)) == [
        "prefix caching", "ngram", "suffix", "draft model", "fp8 weights", "awq weights", "fp8 kv cache",
    ]  # fmt: skip


def test_what_is_not_measured_says_so(facts):
    estimates = [name for name, one in by_name(facts).items() if one.is_estimate]
    assert estimates == ["draft model", "fp8 weights", "awq weights", "fp8 kv cache"]
    assert all(one.costs for one in by_name(facts).values())


def test_each_moves_one_thing(facts):
    base, levers = base_variant(facts), by_name(facts)
    assert not levers["prefix caching"].settings.has_prefix_cache
    assert levers["ngram"].machine.propose_ms == 0.01
    assert levers["ngram"].settings == base.settings
    assert levers["draft model"].machine.num_blocks < base.machine.num_blocks
    assert levers["fp8 weights"].machine.num_blocks > base.machine.num_blocks
    assert levers["fp8 kv cache"].machine.num_blocks == int(1.9 * base.machine.num_blocks)


def test_quantised_curves(facts):
    base = base_variant(facts).machine
    one, many = StepShape(1, 1, 0), StepShape(2048, 1, 0)
    awq = scaled_curve(base.curve, 0.3, 1.2, 1.0)
    assert awq.forward_ms(one) == pytest.approx(0.3 * base.curve.forward_ms(one), rel=0.05)
    assert awq.forward_ms(many) > 1.1 * base.curve.forward_ms(many), "unpacking costs where arithmetic bounds"
    prompts = scaled(replace(base, prompts=base.curve), 0.3, 1.2, 0.5).prompts
    assert prompts is not None
    assert prompts.to_dict() == awq.to_dict(), "what prompts look at is arithmetic"
    same = scaled_curve(base.curve, 1.0, 1.0, 0.5)
    assert same.forward_ms(many) == pytest.approx(base.curve.forward_ms(many))
    reading = StepShape(1, 1, 100_000)
    assert same.forward_ms(reading) - same.forward_ms(one) == pytest.approx(
        0.5 * (base.curve.forward_ms(reading) - base.curve.forward_ms(one))
    )


def test_a_form_that_was_measured_is_no_estimate(facts):
    """A step in FP8 was reckoned by constants of one reading, and a load said to gain 59 % gained 33."""
    fp8 = replace(facts, num_blocks=30_000, curve=CostCurve([(1, 3.0), (2048, 30.0)]).to_dict())
    levers = {one.name: one for one in lever_variants(facts, {}, Assumptions(), {"fp8 weights": fp8})}
    measured, reckoned = levers["fp8 weights"], levers["fp8 kv cache"]
    assert not measured.is_estimate
    assert measured.machine.num_blocks == 30_000
    assert measured.machine.curve.forward_ms(StepShape(1, 1, 0)) == pytest.approx(3.0)
    assert measured.settings == base_variant(facts).settings
    assert measured.costs == by_name(facts)["fp8 weights"].costs
    assert reckoned.is_estimate
