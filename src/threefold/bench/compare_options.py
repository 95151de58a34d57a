"""Flags of `bench compare`, beyond those of the load that it sends."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.flags.flag import Flag
from threefold.flags.values import integer, number, output_file, switch


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How sides are compared."""

    rounds: int = 3
    """Runs of each side."""
    together: bool = False
    """Start all servers at once and keep them."""
    start_timeout_s: float = 600.0
    """A server must be ready within."""
    plot: str | None = None
    """Picture to draw."""


COMPARE_FLAGS = (
    Flag("rounds", "compare.rounds", integer(1), "runs of each side (3; fewer give no interval)", metavar="N"),
    Flag("together", "compare.together", switch, "start all servers at once and keep them (memory for all is needed)",
         kind="switch"),
    Flag("start-timeout", "compare.start_timeout_s", number(0, is_low_open=True),
         "longest time until a server is ready (600)", metavar="SECONDS"),
    Flag("plot", "compare.plot", output_file, "picture to draw: .png, .svg or .pdf (needs the extra `plot`)",
         metavar="FILE"),
)  # fmt: skip
