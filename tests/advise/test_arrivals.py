import numpy as np
import pytest

from threefold.advise.arrivals import describe_arrivals


def test_a_poisson_stream():
    times = np.cumsum(np.random.default_rng(0).exponential(0.2, 20_000))
    said = describe_arrivals(times.tolist())
    assert said is not None
    assert said["rate_rps"] == pytest.approx(5.0, rel=0.03)
    assert said["gamma_shape"] == pytest.approx(1.0, abs=0.05)
    assert said["dispersion"]["1"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_gamma_gaps_give_their_shape_back(shape):
    times = np.cumsum(np.random.default_rng(1).gamma(shape, 1.0 / shape, 40_000))
    said = describe_arrivals(times.tolist())
    assert said is not None
    assert said["gamma_shape"] == pytest.approx(shape, rel=0.1)


def test_long_bursts_show_in_dispersion():
    rng = np.random.default_rng(2)
    busy = [start + rng.uniform(0, 10, 100) for start in range(0, 2000, 100)]
    said = describe_arrivals(np.sort(np.concatenate(busy)).tolist())
    assert said is not None
    assert said["dispersion"]["10"] > 20
    assert said["peak_rate_rps"] > 4 * said["rate_rps"]


@pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0], [3.0, 3.0, 3.0]])
def test_too_little_says_nothing(times):
    assert describe_arrivals(times) is None
