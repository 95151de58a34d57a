"""Flags of `bench step-load`, and what they come to. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.bench.load_options import DATASET_HELP, HTML_HELP, JSON_HELP, PLOT_HELP
from threefold.flags.flag import Flag
from threefold.flags.values import integer, output_file, seed, text, words


@dataclass(frozen=True, slots=True)
class StepLoadOptions:
    """A load that changes at once."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    group: str = "mixed"
    """As LoadOptions.group."""
    users: tuple[int, ...] = (4, 64, 4)
    """Users at once, phase by phase."""
    steps: int = 200
    """Steps a phase."""
    max_tokens: int = 128
    """Tokens of every answer."""
    shuffle_seed: int = 0
    """Of the choice of prompts."""
    json: str | None = None
    """File to write the result to."""
    plot: str | None = None
    """Picture to draw."""
    html: str | None = None
    """File for a page."""


def _counts(value: str) -> tuple[int, ...]:
    """Whole numbers joined by commas, in which one may come twice."""
    return tuple(integer(1, 65536)(part) for part in words(text(value)))


STEP_LOAD_FLAGS = (
    Flag("dataset", "step_load.dataset", text, DATASET_HELP, aliases=("--dataset-path",), metavar="FILE"),
    Flag("group", "step_load.group", text, "all, extract, prose, mixed, or categories with commas (mixed)",
         metavar="GROUP"),
    Flag("users", "step_load.users", _counts, "users at once, phase by phase (4,64,4)", metavar="LIST"),
    Flag("steps", "step_load.steps", integer(20), "steps a phase (200)", metavar="N"),
    Flag("max-tokens", "step_load.max_tokens", integer(1), "tokens of every answer (128)", metavar="N"),
    Flag("shuffle-seed", "step_load.shuffle_seed", seed, "of the choice of prompts (0)", metavar="N"),
    Flag("json", "step_load.json", output_file, JSON_HELP, aliases=("--output-json",), metavar="FILE"),
    Flag("plot", "step_load.plot", output_file, PLOT_HELP, metavar="FILE"),
    Flag("html", "step_load.html", output_file, HTML_HELP, metavar="FILE"),
)  # fmt: skip
