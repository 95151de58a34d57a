from __future__ import annotations

from threefold.bench.envelope_cell import Cell, Run, describe, summary
from threefold.metrics import EngineStats


def runs(*speeds: float, tokens: list[list[int]] | None = None) -> list[Run]:
    return [Run(speed, 0, tokens or [[1, 2], [3]], EngineStats()) for speed in speeds]


def cell_of(**variants: list[Run]) -> dict:
    named = {name.replace("_", " "): made for name, made in variants.items()}
    return describe(Cell("prose", 4, "ngram", 2, 2, named))


def test_verdicts() -> None:
    cell = cell_of(
        off=runs(100, 101, 99), gated=runs(99.5, 100.7, 98.2), fixed_2=runs(130, 131, 129), fixed_4=runs(90, 95, 92),
        adaptive=runs(129.9, 131.2, 128.8),
    )  # fmt: skip
    assert cell["best"] == "fixed 2"
    assert cell["adaptive_over_best"]["holds"] is True
    assert "no difference" in cell["adaptive_over_best"]["verdict"]
    assert cell["adaptive_over_off"]["is_different"]
    assert summary(cell).startswith("prose × 4, ngram, 2 requests: no difference: adaptive / fixed 2 = ")
    slow = cell_of(off=runs(100, 101, 99), gated=runs(90, 111, 99), adaptive=runs(90, 91, 89))
    assert slow["adaptive_over_best"]["holds"] is False
    assert slow["gated_over_off"]["holds"] is None  # too noisy to say
    once = cell_of(off=runs(100), gated=runs(100), adaptive=runs(50))
    assert once["adaptive_over_best"]["holds"] is None


def test_other_answers_and_unequal_work_are_seen() -> None:
    cell = cell_of(off=runs(9, 9), gated=runs(9, 9), adaptive=runs(9, tokens=[[1, 7], [3]]) + runs(9))
    assert cell["variants"]["adaptive"]["num_different"] == [1, 0]
    assert cell["has_equal_tokens"]
    assert not cell_of(off=runs(9), gated=runs(9), adaptive=runs(9, tokens=[[1, 2], [3, 4]]))["has_equal_tokens"]
