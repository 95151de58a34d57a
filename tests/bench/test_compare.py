import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.bench.compare import compare, interleave

READINGS = st.lists(st.floats(1, 1000), min_size=3, max_size=12)


def test_a_clear_difference() -> None:
    result = compare([100, 101, 99, 100], [120, 122, 119, 121])
    assert result.ratio == pytest.approx(1.205, abs=0.01)
    assert result.is_different
    assert result.verdict("off", "on").startswith("on is 20.5% higher than off")
    assert (result.a.median, result.a.low, result.a.high) == (100, 99, 101)


def test_drift_that_both_share_is_taken_out() -> None:
    drift = [1.0, 0.7, 1.3, 0.5, 1.8]
    result = compare([100 * d for d in drift], [110 * d for d in drift])
    assert result.interval == pytest.approx((1.1, 1.1))
    assert result.is_different


def test_noise_is_no_difference() -> None:
    result = compare([100, 90, 110, 95], [95, 105, 98, 102])
    assert not result.is_different
    assert result.verdict().startswith("no difference: B / A = ")


def test_too_few_rounds_have_no_interval() -> None:
    result = compare([100, 100], [200, 200])
    assert result.interval is None
    assert not result.is_different
    assert "too few rounds" in result.verdict()


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_what_cannot_be_compared(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"wants as many|above 0"):
        compare(a, b)


@given(READINGS, st.floats(0.5, 2))
def test_a_constant_ratio_is_found_exactly(a: list[float], ratio: float) -> None:
    result = compare(a, [value * ratio for value in a])
    assert result.ratio == pytest.approx(ratio)
    assert result.interval == pytest.approx((ratio, ratio))


@given(st.data(), READINGS)
def test_swapping_sides_inverts_the_ratio(data, a: list[float]) -> None:
    b = data.draw(st.lists(st.floats(1, 1000), min_size=len(a), max_size=len(a)))
    assert compare(a, b).ratio * compare(b, a).ratio == pytest.approx(1)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    dice = random.Random(1)
    covered = 0
    for trial in range(200):
        a = [100 * dice.lognormvariate(0, 0.05) for _ in range(10)]
        b = [105 * dice.lognormvariate(0, 0.05) for _ in range(10)]
        low, high = compare(a, b, seed=trial).interval
        covered += low <= 1.05 <= high
    assert covered >= 0.88 * 200


def test_turns_alternate_who_is_first() -> None:
    order: list[str] = []
    runs = [lambda name=name: order.append(name) or name.lower() for name in "ABC"]
    assert interleave(runs, 3) == [["a"] * 3, ["b"] * 3, ["c"] * 3]
    assert "".join(order) == "ABCCBAABC"
