"""Flags of `bench envelope`, and what they come to. Runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from threefold.bench.load_options import DATASET_HELP, HTML_HELP, JSON_HELP, PLOT_HELP
from threefold.flags.flag import Flag
from threefold.flags.values import choice, integer, number, output_file, seed, switch, text, words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvelopeOptions:
    """Speculation off, gated, fixed and adaptive, over a table of loads."""

    dataset: str | None = None
    """JSON lines to read prompts from."""
    groups: tuple[str, ...] = ("extract", "prose", "mixed")
    """Loads, as LoadOptions.group names them; categories of one load are joined by +."""
    concurrency: tuple[int, ...] = (1, 4, 16, 64)
    """Users at once."""
    methods: tuple[str, ...] = ("ngram", "suffix")
    """Drafters."""
    fixed: tuple[int, ...] = (2, 4, 6, 8)
    """Fixed draft lengths to measure against."""
    rounds: int = 3
    """Runs of each variant."""
    max_tokens: int = 256
    """Most tokens of an answer."""
    ignore_eos: bool = False
    """Every answer goes on to max_tokens; False = to its natural end, found by a first run."""
    requests_per_row: int | None = None
    """Requests of a run for each user; None = 2, or with a budget as many as fit."""
    budget_s: float | None = None
    """Time that the table may take; None = as long as it takes."""
    cpu_time: bool = False
    """Rates by the time that the engine's thread was at work, so that a neighbour's work is not counted; on a CPU."""
    shuffle_seed: int = 0
    """Of the choice of prompts."""
    label: str | None = None
    """A name for the run, kept in the result."""
    json: str | None = None
    """File to write the result to."""
    markdown: str | None = None
    """File to write the table to."""
    plot: str | None = None
    """Picture to draw."""
    html: str | None = None
    """File for a page."""


def _each(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Values joined by commas, at least one."""

    def parse_all(value: str) -> tuple[T, ...]:
        parts = words(value)
        if not parts:
            raise ValueError("wants at least one value; several are joined by commas")
        return tuple(dict.fromkeys(parse(part) for part in parts))

    return parse_all


ENVELOPE_FLAGS = (
    Flag("dataset", "envelope.dataset", text, DATASET_HELP, aliases=("--dataset-path",), metavar="FILE"),
    Flag("groups", "envelope.groups", _each(text), "loads (extract,prose,mixed); categories of one joined by +",
         metavar="LIST"),
    Flag("concurrency", "envelope.concurrency", _each(integer(1, 65536)), "users at once (1,4,16,64)", metavar="LIST"),
    Flag("methods", "envelope.methods", _each(choice("ngram", "suffix", "draft_model")), "drafters (ngram,suffix)",
         metavar="LIST"),
    Flag("fixed", "envelope.fixed", _each(integer(1, 64)), "fixed draft lengths to measure against (2,4,6,8)",
         metavar="LIST"),
    Flag("rounds", "envelope.rounds", integer(1), "runs of each variant (3; fewer give no interval)", metavar="N"),
    Flag("max-tokens", "envelope.max_tokens", integer(1), "most tokens of an answer (256)", metavar="N"),
    Flag("ignore-eos", "envelope.ignore_eos", switch, "every answer goes on to max-tokens", kind="switch"),
    Flag("requests-per-row", "envelope.requests_per_row", integer(1),
         "requests of a run for each user (2); with --budget-s the most", metavar="N"),
    Flag("budget-s", "envelope.budget_s", number(0, is_low_open=True),
         "seconds that the table may take: chooses the number of requests, at least one a user", metavar="SECONDS"),
    Flag("cpu-time", "envelope.cpu_time", switch,
         "rates by the time the engine's thread was at work, not by the clock: for a CPU shared with others",
         kind="switch"),
    Flag("shuffle-seed", "envelope.shuffle_seed", seed, "of the choice of prompts (0)", metavar="N"),
    Flag("label", "envelope.label", text, "a name for the run, kept in the result", metavar="NAME"),
    Flag("json", "envelope.json", output_file, JSON_HELP, aliases=("--output-json",), metavar="FILE"),
    Flag("markdown", "envelope.markdown", output_file, "file to write the table to, as Markdown", metavar="FILE"),
    Flag("plot", "envelope.plot", output_file, PLOT_HELP, metavar="FILE"),
    Flag("html", "envelope.html", output_file, HTML_HELP, metavar="FILE"),
)  # fmt: skip
