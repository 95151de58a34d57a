"""`threefold report`: one page from the JSON files that the other commands write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from threefold.errors import ConfigError
from threefold.flags.configs import fill, parse_command
from threefold.flags.flag import Flag
from threefold.flags.usage import usage
from threefold.flags.values import output_file, switch, text
from threefold.report.build import TITLE, write_report
from threefold.report.charts import check_charts
from threefold.report.parts import KNOWN, read_parts


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the page is."""

    output: str = "report.html"
    """Where it goes."""
    title: str = TITLE
    """Its heading."""
    include_text: bool = False
    """Show text of prompts and of servers' messages, where a file has it."""


REPORT_FLAGS = (
    Flag("output", "report.output", output_file, "the page (default report.html)", aliases=("-o",),
         metavar="FILE.html"),
    Flag("title", "report.title", text, "its heading", metavar="TEXT"),
    Flag("include-text", "report.include_text", switch,
         "show beginnings of prompts and whole error messages where a file has them; without it no text is shown",
         kind="switch"),
)  # fmt: skip


def run_report(words: Sequence[str]) -> int:
    """`threefold report A.json B.json …`: one page.

    Raises:
        ConfigError: what was typed cannot hold, or a file is no result.
    """
    parsed = parse_command(words, REPORT_FLAGS, refuses_vllm=False)
    if parsed.help_word is not None:
        print(usage("threefold report", "RESULT.json... [flags]", (("Report", REPORT_FLAGS),), parsed.help_word))
        return 0
    asked = fill("report", ReportOptions(), parsed.assignments)
    if not parsed.positionals:
        raise ConfigError(
            f"no result is given: threefold report RESULT.json… -o report.html; known are those of {KNOWN}"
        )
    check_charts("report")
    parts = read_parts([Path(word) for word in parsed.positionals])
    write_report(Path(asked.output), parts, "--output", title=asked.title, include_text=asked.include_text)
    print(f"written: {asked.output}")
    return 0
