from dataclasses import replace

from threefold.advise.verify_cell import Cell, score
from threefold.advise.verify_table import verification_lines, verification_markdown


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
        "tokens/s without the lever: predicted +11% off in the middle, from +11% to +11%",
    ]
    assert score([]) == []
    assert any("ngram" in line for line in verification_lines(cells))


def test_the_table_for_a_document():
    machine = {"cpu": "a CPU", "cores": 2, "cards": "a card"}
    result = {
        "command": "threefold advise x",
        "git_commit": "ab" * 20 + "+changes",
        "date": "2026-11-30T1",
        "machine": machine,
    }
    lines = verification_markdown([replace(cell(0.2, 0.3), load="prose"), cell(0.0, 0.01)], result).splitlines()
    assert lines[0].startswith(
        "`threefold advise x`, commit abababababab with changes, 2026-11-30, a card, a CPU, 2 cores"
    )
    assert lines[2].startswith("| load | lever | users |")
    assert lines[3].startswith("| --- | --- | ---: |")
    assert lines[4].startswith("| prose | ngram | 4 | 12 | +20% | +30% ± 1 | right | yes | 100 | 90 |")
