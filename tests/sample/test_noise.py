from __future__ import annotations

import numpy as np

from threefold.sample.noise import Purpose, uniforms


def draw(seeds, positions, purpose=Purpose.TOKEN):
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.int64), purpose)


def test_a_number_depends_on_seed_and_position_alone():
    together = draw([7, 8, 9], [0, 5, 2])
    assert together[1] == draw([8], [5])[0]
    assert len(set(together.tolist())) == 3
    assert draw([7], [0])[0] != draw([7], [0], Purpose.SYNTHETIC_ACCEPTANCE)[0]


def test_numbers_are_uniform_and_uncorrelated_along_seeds_and_positions():
    seeds, positions = np.meshgrid(np.arange(300), np.arange(300))
    numbers = draw(seeds.ravel(), positions.ravel())
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    expectation = numbers.size / 50
    assert ((counts - expectation) ** 2 / expectation).sum() < 95  # 49 degrees of freedom, 1e-4 quantile
    grid = numbers.reshape(300, 300)
    for shifted in (grid[1:] * 1.0, grid[:, 1:].T):
        base = grid[:-1] if shifted.shape == grid[:-1].shape else grid[:, :-1].T
        assert abs(np.corrcoef(base.ravel(), shifted.ravel())[0, 1]) < 0.015


def test_extreme_seeds_are_fine():
    numbers = draw([0, 2**63, 2**64 - 1], [0, 2**40, 0])
    assert ((numbers >= 0) & (numbers < 1)).all()
