import numpy as np
import pytest

from threefold.least_squares import non_negative


@pytest.mark.parametrize("seed", range(20))
def test_no_unknown_that_is_held_at_zero_could_be_let_go_and_no_other_moved(seed: int) -> None:
    """The conditions of Karush, Kuhn and Tucker."""
    rng = np.random.default_rng(seed)
    matrix, goal = rng.normal(size=(30, 12)), rng.normal(size=30)
    solution = non_negative(matrix, goal)
    slope = matrix.T @ (goal - matrix @ solution)
    assert (solution >= 0).all()
    assert np.abs(slope[solution > 0]).max(initial=0.0) < 1e-8
    assert slope[solution == 0].max(initial=0.0) < 1e-8


def test_what_can_be_met_is_met() -> None:
    matrix = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]])
    assert non_negative(matrix, matrix @ np.array([2.0, 0.5])) == pytest.approx([2.0, 0.5])


def test_a_goal_on_the_other_side_comes_to_nothing() -> None:
    assert non_negative(np.eye(3), np.array([-1.0, -2.0, -3.0])).tolist() == [0.0, 0.0, 0.0]


def test_columns_that_say_the_same_come_to_an_end() -> None:
    solution = non_negative(np.ones((4, 3)), np.full(4, 6.0))
    assert solution.sum() == pytest.approx(6.0)
