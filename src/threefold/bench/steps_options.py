"""Flags of `bench steps`, and what they come to. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.bench.load_options import HTML_HELP
from threefold.flags.flag import Flag
from threefold.flags.values import integer, number, output_file, seed


@dataclass(frozen=True, slots=True)
class StepsOptions:
    """Which steps are timed."""

    rows: int = 256
    """Requests that run all the time."""
    input_len: int = 512
    """Tokens of their prompts."""
    prompt_len: int = 0
    """Tokens of the prompt of one more request a step, which wants one token; 0 = there is none."""
    steps: int = 200
    """Steps timed."""
    warmups: int = 20
    """Steps before them, after the prompts."""
    profile_steps: int = 10
    """Steps more whose kernels are told apart, on a card; 0 = none."""
    temperature: float = 0.0
    """0 = greedy."""
    seed: int = 0
    """Of the prompts."""
    json: str | None = None
    """File to write the result to."""
    html: str | None = None
    """File for a page."""


STEPS_FLAGS = (
    Flag("rows", "steps.rows", integer(1), "requests that run all the time (256)", metavar="N"),
    Flag("input-len", "steps.input_len", integer(1), "tokens of their prompts (512)", metavar="N"),
    Flag("prompt-len", "steps.prompt_len", integer(0),
         "tokens of a prompt that comes with every step, and wants one token; 0 = none (0)", metavar="N"),
    Flag("steps", "steps.steps", integer(1), "steps timed (200)", metavar="N"),
    Flag("warmups", "steps.warmups", integer(0), "steps before them, after the prompts (20)", metavar="N"),
    Flag("profile-steps", "steps.profile_steps", integer(0),
         "steps more whose kernels are told apart, on a card; 0 = none (10)", metavar="N"),
    Flag("temperature", "steps.temperature", number(0.0), "0 = greedy (0)", metavar="X"),
    Flag("prompt-seed", "steps.seed", seed, "of the prompts (0)", metavar="N"),
    Flag("json", "steps.json", output_file, "write the result and every step to a file", aliases=("--output-json",),
         metavar="FILE"),
    Flag("html", "steps.html", output_file, HTML_HELP, metavar="FILE"),
)  # fmt: skip
