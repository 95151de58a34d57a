"""Results to pictures, with matplotlib where it is installed. Reads plain results, runs nothing."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from threefold.bench.step_load import WINDOW_STEPS, StepRecord, running_mean
from threefold.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
TITLE_CHARS = 44
"""As wide as a picture."""


def check_plot(path: str | None) -> None:
    """Refuse before the load what could not be drawn after it.

    Raises:
        ConfigError: matplotlib is missing, or the file's kind is not known.
    """
    if path is None:
        return
    if Path(path).suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: wants a file ending in {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install 'threefold[plot]'") from None


def plot_envelope(path: Path, result: dict[str, Any]) -> None:
    """Tokens/s over that without speculation, by users: one picture for each load and drafter.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    cells = result["cells"]
    groups = list(dict.fromkeys(cell["group"] for cell in cells)) or [""]
    methods = list(dict.fromkeys(cell["method"] for cell in cells)) or [""]
    figure = Figure(figsize=(4.2 * len(groups), 3.4 * len(methods)), layout="constrained")
    grid = figure.subplots(len(methods), len(groups), squeeze=False, sharey=True)
    for method, line in zip(methods, grid, strict=True):
        for group, axes in zip(groups, line, strict=True):
            chosen = [cell for cell in cells if cell["method"] == method and cell["group"] == group]
            _draw_cells(axes, chosen, result["variants"])
            title = f"{group.replace(',', ', ')} · {method}"
            axes.set_title(fill(title, TITLE_CHARS), fontsize="medium")
    if cells:  # beside the pictures: within one it would lie over curves
        handles, names = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names), fontsize="small")
    figure.supxlabel("users")
    figure.supylabel("tokens/s over off")
    save_figure(figure, path)


def plot_step_load(path: Path, result: dict[str, Any]) -> None:
    """Users, drafts a row and time a step, step by step.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    records = [StepRecord(**step) for step in result["steps"]]
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    rows, drafts, times = figure.subplots(3, 1, sharex=True)
    committing = [record.committing for record in records]
    rows.plot([record.users for record in records], label="users", drawstyle="steps-post", color="black")
    rows.plot(committing, label="rows that commit", linewidth=1)
    for name, color in (("admitted", "tab:blue"), ("asked", "tab:orange")):
        counts = [step[name] for step in result["steps"]]
        each = [count / max(num_rows, 1) for count, num_rows in zip(counts, committing, strict=True)]
        drafts.plot(each, linewidth=0.6, alpha=0.5, color=color)
        means = running_mean(counts, committing)
        steps = range(WINDOW_STEPS - 1, WINDOW_STEPS - 1 + len(means))
        drafts.plot(steps, means, label=f"drafts {name} a row, mean over {WINDOW_STEPS} steps", color=color)
        for change in result["changes"]:
            if change[name]["settled_after_steps"] is not None:
                settled = change["at_step"] + change[name]["settled_after_steps"] - 1
                drafts.axvline(settled, color=color, linestyle=":")
    times.plot([record.ms for record in records], label="ms a step", linewidth=0.8)
    for axes in (rows, drafts, times):
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderaxespad=0, fontsize="small")
        axes.set_ylim(bottom=0)
    times.set_xlabel("step (dotted: settled)")
    save_figure(figure, path)


def _draw_cells(axes: Axes, cells: list[dict[str, Any]], variants: list[str]) -> None:
    users = [cell["concurrency"] for cell in cells]
    for name in variants:
        off = [cell["variants"]["off"]["median"] for cell in cells]
        own = [cell["variants"][name] for cell in cells]
        middle = [variant["median"] / base for variant, base in zip(own, off, strict=True)]
        below = [(variant["median"] - variant["low"]) / base for variant, base in zip(own, off, strict=True)]
        above = [(variant["high"] - variant["median"]) / base for variant, base in zip(own, off, strict=True)]
        is_ours = name == "adaptive"
        axes.errorbar(
            users, middle, [below, above], label=name, marker="o", markersize=3, capsize=2, zorder=3 if is_ours else 2,
            linewidth=2.4 if is_ours else 1, linestyle="-" if is_ours else "--",
            color="black" if is_ours else None,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(users, [str(count) for count in users])
    axes.grid(visible=True, alpha=0.3)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot write it: {error.strerror}") from None
