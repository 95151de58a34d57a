from threefold.advise.tables import verification_lines
from threefold.advise.verify_cell import Cell, score


def cell(predicted: float, measured: float) -> Cell:
    return Cell("ngram", 4, 12, predicted, measured, 0.01, 100.0, 90.0)


def test_signs_and_sizes():
    assert cell(0.2, 0.3).is_sign_right
    assert cell(-0.2, 0.3).is_sign_right is False
    assert cell(-0.02, 0.03).is_sign_right is None
    assert cell(0.2, 0.34).is_close
    assert not cell(0.2, 0.4).is_close


def test_score():
    cells = [cell(0.2, 0.3), cell(-0.2, 0.3), cell(0.0, 0.01)]
    assert score(cells) == [
        "sign right in 1 of 2 cells with a measured effect above 5%",
        "size within 15 points in 2 of 3 cells",
    ]
    assert any("ngram" in line for line in verification_lines(cells))
