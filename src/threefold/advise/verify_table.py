"""Predicted against measured for eyes: a table for the terminal, the same in Markdown. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from threefold.advise.verify_cell import Cell, score
from threefold.bench.machine import described
from threefold.bench.report import drawn_table, markdown_table

_HEADERS = ["lever", "users", "requests", "predicted", "measured", "sign", "within 15 points", "tokens/s said", "was"]


def verification_lines(cells: Sequence[Cell]) -> list[str]:
    """For the terminal; nothing where nothing was measured."""
    if not cells:
        return []
    headers, rows, num_left = _table(cells)
    return [
        "predicted against measured, on this machine:",
        *drawn_table(headers, rows, num_left=num_left),
        *score(cells),
    ]


def verification_markdown(cells: Sequence[Cell], result: Mapping[str, Any]) -> str:
    """For a document, with the command that made it and the machine."""
    headers, rows, num_left = _table(cells)
    head = f"`{result['command']}`, {described(result)}. Tokens/s said and was: without the lever. \
± is two standard errors."
    return "\n".join([head, "", *markdown_table(headers, rows, num_left=num_left), "", *score(cells)]) + "\n"


def _table(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]], int]:
    """Headers, rows, and how many columns are words."""
    rows = [
        [cell.lever, str(cell.users), str(cell.num_requests), f"{cell.predicted:+.0%}",
         cell.measured_words, cell.sign,
         "yes" if cell.is_close else "no", f"{cell.predicted_rate:.0f}", f"{cell.measured_rate:.0f}"]
        for cell in cells
    ]  # fmt: skip
    if not any(cell.load for cell in cells):
        return _HEADERS, rows, 1
    return ["load", *_HEADERS], [[cell.load, *row] for cell, row in zip(cells, rows, strict=True)], 2
