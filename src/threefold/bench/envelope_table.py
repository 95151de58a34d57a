"""The envelope for eyes: a table for the terminal, the same in Markdown. Computes nothing."""

from __future__ import annotations

from typing import Any

from threefold.bench.machine import described
from threefold.bench.report import drawn_table, markdown_table

_LEFT = 3  # columns that hold words


def headers(result: dict[str, Any]) -> list[str]:
    """Names of the columns."""
    return [
        "load", "users", "drafter", *result["variants"], "best other", "adaptive / best", "gated / off",
        "adaptive / off", "other answers",
    ]  # fmt: skip


def row(cell: dict[str, Any]) -> list[str]:
    """One line of the table: tokens/s as median and half its spread, ratios with their interval."""
    return [
        cell["group"],
        str(cell["concurrency"]),
        cell["method"],
        *(_speed(variant) for variant in cell["variants"].values()),
        cell["best"],
        _ratio(cell["adaptive_over_best"]),
        _ratio(cell["gated_over_off"]),
        _ratio(cell["adaptive_over_off"]),
        _differing(cell),
    ]


def terminal_lines(result: dict[str, Any]) -> list[str]:
    """The table, drawn, and what came of it."""
    drawn = drawn_table(headers(result), [row(cell) for cell in result["cells"]], num_left=_LEFT)
    return [f"{_unit(result)}, median ± half the spread", *drawn, *outcome_lines(result)]


def markdown(result: dict[str, Any]) -> str:
    """The table for a document, with the command that made it."""
    names = headers(result)
    lines = [
        f"`{result['command']}`, {described(result)}, rounds: {result['rounds']}, at most {result['max_tokens']} "
        f"tokens a request. In {_unit(result)}, median ± half the spread:",
        "",
        *markdown_table(names, [row(cell) for cell in result["cells"]], num_left=_LEFT),
        "",
        *outcome_lines(result),
    ]
    return "\n".join(lines) + "\n"


def outcome_lines(result: dict[str, Any]) -> list[str]:
    """How many cells hold, and what a reader must know beside."""
    cells = result["cells"]
    lines = [
        _outcome(cells, "adaptive_over_best", "adaptive / best of off and fixed"),
        _outcome(cells, "gated_over_off", "gated / off"),
    ]
    unequal = [cell for cell in cells if not cell["has_equal_tokens"]]
    if unequal:
        lines.append(f"Runs of {len(unequal)} cells differ in their number of tokens: their speeds do not compare.")
    num_failed = sum(cell["num_failed"] for cell in cells)
    if num_failed:
        lines.append(f"{num_failed} requests failed.")
    if result["is_interrupted"]:
        lines.append("Interrupted: the table is not complete.")
    return lines


def _outcome(cells: list[dict[str, Any]], key: str, name: str) -> str:
    verdicts = [cell[key]["holds"] for cell in cells]
    if not verdicts:
        return f"{name}: nothing measured"
    return (
        f"{name} at least {cells[0][key]['target']:g}: holds in {verdicts.count(True)} of {len(cells)} cells, "
        f"fails in {verdicts.count(False)}, the noise leaves {verdicts.count(None)} open."
    )


def _unit(result: dict[str, Any]) -> str:
    return "tokens/s of the engine's CPU time" if result["is_cpu_time"] else "tokens/s"


def _speed(variant: dict[str, Any]) -> str:
    if len(variant["tokens_per_s"]) == 1:
        return f"{variant['median']:.0f}"
    half = (variant["high"] - variant["low"]) / 2 / variant["median"]
    return f"{variant['median']:.0f} ±{100 * half:.0f}%"


def _ratio(judged: dict[str, Any]) -> str:
    if judged["interval"] is None:
        return f"{judged['ratio']:.3f}"
    low, high = judged["interval"]
    word = "" if judged["is_different"] else " no difference"
    return f"{judged['ratio']:.3f} ({low:.3f}–{high:.3f}){word}"


def _differing(cell: dict[str, Any]) -> str:
    """Most answers of a run that differ from those with drafts off, over all variants and rounds; off itself apart."""
    others = [variant for name, variant in cell["variants"].items() if name != "off"]
    most = max(max(variant["num_different"]) for variant in others)
    itself = max(cell["variants"]["off"]["num_different"])
    return f"{most} of {cell['num_requests']}" + (f" (off itself {itself})" if itself else "")
