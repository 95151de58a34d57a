"""From results to a written page: parts to sections, sections to a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from threefold.bench.report import write_text
from threefold.errors import ConfigError
from threefold.report.advice import advice_section, tuned_section
from threefold.report.comparison import comparison_section
from threefold.report.envelope import envelope_section
from threefold.report.ladder import ladder_section
from threefold.report.markup import Section
from threefold.report.page import render_page
from threefold.report.parts import Part, parts_of
from threefold.report.portrait import portrait_section
from threefold.report.serve import serve_section
from threefold.report.step_load import step_load_section
from threefold.report.steps import steps_section
from threefold.report.verification import verification_section

TITLE = "Threefold report"


class _Render(Protocol):
    def __call__(self, parts: Sequence[Part], *, include_text: bool) -> Section: ...


SECTIONS: dict[str, _Render] = {
    "advice": advice_section,
    "tuned": tuned_section,
    "verification": verification_section,
    "serve": serve_section,
    "ladder": ladder_section,
    "envelope": envelope_section,
    "step-load": step_load_section,
    "steps": steps_section,
    "comparison": comparison_section,
    "portrait": portrait_section,
}
"""By kind of part, in the order in which they stand on the page."""


def build_page(parts: Sequence[Part], *, title: str = TITLE, include_text: bool = False) -> str:
    """The page that shows all parts.

    Raises:
        ConfigError: a part lacks what its kind must have.
    """
    sections = []
    for kind, render in SECTIONS.items():
        own = [part for part in parts if part.kind == kind]
        if not own:
            continue
        try:
            sections.append(render(own, include_text=include_text))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
            files = ", ".join(dict.fromkeys(part.origin.file for part in own))
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{files}: no whole {kind} result, so it cannot be shown ({reason})") from error
    return render_page(title, sections)


def write_report(
    path: Path, parts: Sequence[Part], flag: str, *, title: str = TITLE, include_text: bool = False
) -> None:
    """Write the page.

    Raises:
        ConfigError: a part cannot be shown, or the file cannot be written.
    """
    page = build_page(parts, title=title, include_text=include_text)
    write_text(path, page.encode("utf-8", "replace").decode("utf-8"), flag)  # half a character pair cannot be written


def write_result_page(path: str, result: Mapping[str, Any], *, include_text: bool = False) -> None:
    """The page that a command's own --html asks for.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_report(Path(path), parts_of(result, "this result"), "--html", include_text=include_text)
