import pytest

from threefold.advise.verdict import LEAST_ESTIMATE, OFF, ON, SAME, LoadGain, flip_point, interval, judged


def gains(*changes: float) -> list[LoadGain]:
    return [LoadGain(4**index, float(4**index), change, 0.0, 0.0) for index, change in enumerate(changes)]


@pytest.mark.parametrize(
    ("change", "low", "high", "said"),
    [
        (0.3, 0.1, 0.5, ON),
        (0.3, -0.1, 0.8, SAME),
        (0.01, 0.005, 0.015, SAME),
        (-0.2, -0.3, -0.1, OFF),
        (-0.2, -0.5, 0.1, SAME),
        (0.0, 0.0, 0.0, SAME),
    ],
)
def test_judged(change, low, high, said):
    assert judged(change, low, high) == said


def test_an_estimate_must_be_larger():
    assert judged(0.03, 0.01, 0.05) == ON
    assert judged(0.03, 0.01, 0.05, LEAST_ESTIMATE) == SAME


def test_interval():
    middle, low, high = interval([0.1, 0.1, 0.1])
    assert middle == pytest.approx(low) == pytest.approx(high) == pytest.approx(0.1)
    middle, low, high = interval([0.0, 0.2])
    assert low < 0.0 < middle < 0.2 < high
    assert interval([0.1], error=0.05)[1] == pytest.approx(0.0, abs=0.01)
    assert interval([-2.0])[0] > -1.0


def test_flips():
    assert flip_point([]) == ""
    assert flip_point(gains(0.3, 0.2, 0.1)) == "pays from 1 to 16 users"
    assert flip_point(gains(0.0, -0.2)) == "never pays from 1 to 4 users"
    assert flip_point(gains(0.3)) == "pays with 1 user"
    assert flip_point(gains(0.32, -0.28)) == "stops to pay at about 2 users (2.5 requests/s)"
    assert flip_point(gains(-0.1, 0.1, -0.1)).count("pay at") == 2


def test_noise_around_the_limit_turns_nothing():
    assert flip_point(gains(0.3, 0.025, 0.015, 0.025, 0.3)) == "pays from 1 to 256 users"
