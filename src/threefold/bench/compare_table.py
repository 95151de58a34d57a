"""A comparison to lines for a terminal, and to a picture. Measures nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from threefold.bench.plot import save_figure
from threefold.bench.report import WIDTH


def compare_lines(result: dict[str, Any]) -> list[str]:
    """Medians with the smallest and the largest reading, one line a side; then what may be said of the difference."""
    names = [side["name"] for side in result["sides"]]
    width = max(map(len, names))
    lines = [f" Comparison, {result['num_rounds']} rounds ".center(WIDTH, "=")]
    for entry in result["figures"]:
        lines.append(entry["figure"].center(WIDTH, "-"))
        for name in names:
            side = entry["sides"][name]
            lines.append(f"{name:<{width}}  {side['median']:>12,.2f}  ({side['low']:,.2f} to {side['high']:,.2f})")
        lines += [against["verdict"] for against in entry["against_first"].values()]
    if not result["figures"]:
        lines.append("no round was whole, so there is nothing to compare")
    if result["remarks"]:
        lines += ["Remarks".center(WIDTH, "-"), *result["remarks"]]
    return [*lines, "=" * WIDTH]


def plot_comparison(path: Path, result: dict[str, Any]) -> None:
    """One picture a figure: the medians, with the smallest and the largest reading as bars.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    entries = result["figures"]
    figure = Figure(figsize=(3.2 * max(len(entries), 1), 3.4), layout="constrained")
    names = [side["name"] for side in result["sides"]]
    for axes, entry in zip(figure.subplots(1, max(len(entries), 1), squeeze=False)[0], entries, strict=False):
        sides = [entry["sides"][name] for name in names]
        middle = [side["median"] for side in sides]
        below = [side["median"] - side["low"] for side in sides]
        above = [side["high"] - side["median"] for side in sides]
        axes.bar(names, middle, color=[f"C{number}" for number in range(len(names))])
        axes.errorbar(names, middle, [below, above], fmt="none", capsize=4, color="black")
        axes.set_title(entry["figure"], fontsize="small")
        axes.tick_params(labelsize="small")
    save_figure(figure, path)
