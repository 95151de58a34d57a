from dataclasses import replace

import pytest

from threefold.advise.verify_cell import Cell, contrast, scatter, score
from threefold.advise.verify_table import verification_lines, verification_markdown


def cell(predicted: float, measured: float, spread: float | None = 0.01) -> Cell:
    return Cell("ngram", 4, 12, predicted, measured, spread, 100.0, 90.0)


def test_signs_and_sizes():
    assert cell(0.2, 0.3).is_sign_right
    assert cell(-0.2, 0.3).is_sign_right is False
    assert cell(-0.02, 0.03).is_sign_right is None
    assert cell(0.2, 0.34).is_close
    assert not cell(0.2, 0.4).is_close


def test_what_noise_may_have_made_is_neither_right_nor_wrong():
    """An effect of -17 % whose rounds lay 58 points apart counted as a wrong sign."""
    assert cell(0.16, -0.17, spread=0.29).sign == "unclear"
    assert cell(0.16, -0.17, spread=0.29).is_sign_right is None
    assert cell(0.16, -0.17, spread=0.10).sign == "wrong"
    assert cell(0.16, 0.10, spread=0.09).sign == "right"
    assert cell(0.16, 0.03, spread=0.01).sign == "small"
    assert cell(0.16, -0.17, spread=None).sign == "wrong", "one round has no interval; its word is taken"


def test_two_standard_errors():
    assert contrast([100.0, 100.0], [120.0, 120.0], 0.0) == (pytest.approx(0.2), 0.0)
    change, spread = contrast([100.0, 102.0], [120.0, 122.4], 0.0)
    assert change == pytest.approx(0.2)
    # Each side's rounds are 2 % apart, their logarithms' standard deviation is 1.4 %, so the mean's is 1 %.
    assert spread == pytest.approx(1.2 * 2 * 0.014 / 2**0.5 * 2**0.5, rel=0.02)
    assert contrast([100.0, 100.0], [120.0, 120.0], 0.05)[1] == pytest.approx(1.2 * 2 * 0.05, rel=0.01)
    assert contrast([100.0, 100.0, 40.0], [120.0] * 3, 0.0)[0] == pytest.approx(0.2), "one disturbed round is outvoted"
    assert contrast([100.0], [120.0], 0.0) == (pytest.approx(0.2), None)


def test_noise_of_rounds():
    assert scatter([100.0]) is None
    assert scatter([100.0, 100.0]) == 0.0
    assert scatter([100.0, 110.0]) == pytest.approx(0.0953 / 2**0.5, rel=1e-3)


def test_score():
    cells = [cell(0.2, 0.3), cell(-0.2, 0.3), cell(0.0, 0.01), cell(0.1, -0.2, spread=0.3)]
    assert score(cells) == [
        "sign right in 1 of 2 cells with a measured effect above 5%; 1 more may be noise",
        "size within 15 points in 1 of these 2, and in 2 of all 4 cells",
        "tokens/s without the lever: predicted +11% off in the middle, from +11% to +11%",
    ]
    assert score([]) == verification_lines([]) == []
    assert any("ngram" in line for line in verification_lines(cells))
    assert score([cell(0.2, 0.3)])[0] == "sign right in 1 of 1 cells with a measured effect above 5%"


def test_the_table_for_a_document():
    machine = {"cpu": "a CPU", "cores": 2, "cards": "a card"}
    result = {
        "command": "threefold advise x",
        "git_commit": "ab" * 20 + "+changes",
        "date": "2026-11-30T1",
        "machine": machine,
    }
    assert "| +30% |" in verification_markdown([cell(0.2, 0.3, spread=None)], result), "no interval of one round"
    lines = verification_markdown([replace(cell(0.2, 0.3), load="prose"), cell(0.0, 0.01)], result).splitlines()
    assert lines[0].startswith(
        "`threefold advise x`, commit abababababab with changes, 2026-11-30, a card, a CPU, 2 cores"
    )
    assert lines[2].startswith("| load | lever | users |")
    assert lines[3].startswith("| --- | --- | ---: |")
    assert lines[4].startswith("| prose | ngram | 4 | 12 | +20% | +30% ± 1 | right | yes | 100 | 90 |")
