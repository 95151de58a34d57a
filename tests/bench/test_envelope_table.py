import pytest

from threefold.bench.envelope_cell import Cell, Run, describe
from threefold.bench.envelope_table import headers, markdown, outcome_lines, row, terminal_lines
from threefold.metrics import EngineStats


def runs(speeds: list[float], token_id: int = 1) -> list[Run]:
    return [Run(speed, 0, [[token_id]], EngineStats()) for speed in speeds]


def result_of(adaptive: list[float], token_id: int = 1) -> dict:
    variants = {
        "off": runs([100, 102, 98]),
        "gated": runs([100, 101, 99]),
        "fixed 4": runs([80, 82, 78]),
        "adaptive": runs(adaptive, token_id),
    }
    cell = describe(Cell("prose", 4, "ngram", 1, 1, variants))
    return {
        "variants": list(variants), "cells": [cell], "is_interrupted": False, "is_cpu_time": False,
        "command": "threefold bench envelope",
        "git_commit": "0123456789abcdef+changes",
        "date": "2026-11-30T12:00:00", "machine": {"cpu": "a CPU", "cores": 2},
        "rounds": 3, "max_tokens": 128,
    }  # fmt: skip


def test_markdown_is_a_table_that_names_its_command() -> None:
    text = markdown(result_of([150, 153, 147], token_id=2))
    lines = text.splitlines()
    assert lines[0].startswith(
        "`threefold bench envelope`, commit 0123456789ab with changes, 2026-11-30, a CPU, 2 cores, rounds: 3"
    )
    table = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "| 100 ±2% |" in table[2]
    assert "| off | 1.500 (1.500–1.500) |" in table[2]
    assert table[2].endswith("| 1 of 1 |")
    assert "holds in 1 of 1 cells" in text


def test_what_kind_of_time_is_said() -> None:
    result = result_of([100, 101, 99])
    assert "In tokens/s, median" in markdown(result)
    result["is_cpu_time"] = True
    assert "In tokens/s of the engine's CPU time, median" in markdown(result)
    assert terminal_lines(result)[0].startswith("tokens/s of the engine's CPU time")


def test_terminal_lines_hold_the_same_row() -> None:
    result = result_of([100, 101, 99])
    drawn = "\n".join(terminal_lines(result))
    for word in (*headers(result), *row(result["cells"][0])):
        assert word in drawn
    assert "no difference" in drawn


@pytest.mark.parametrize(
    ("change", "said"),
    [({"is_interrupted": True}, "Interrupted"), ({"cells": []}, "nothing measured")],
)
def test_what_a_reader_must_know(change: dict, said: str) -> None:
    assert said in "\n".join(outcome_lines({**result_of([100, 101, 99]), **change}))


def test_unequal_work_and_failures_are_said() -> None:
    result = result_of([100, 101, 99])
    result["cells"][0].update(has_equal_tokens=False, num_failed=3)
    lines = "\n".join(outcome_lines(result))
    assert "Runs of 1 cells differ in their number of tokens" in lines
    assert "3 requests failed" in lines
