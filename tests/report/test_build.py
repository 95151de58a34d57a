"""Whole pages: every section from the writers' own JSON, nothing that data could start, nothing from outside."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from threefold.errors import ConfigError
from threefold.report.build import SECTIONS, build_page, write_report, write_result_page
from threefold.report.parts import parts_of

pytest.importorskip("matplotlib")
VOID = {"meta", "br", "link", "img", "use", "path"}


class Reader(HTMLParser):
    """Tags that open and never close, every attribute, all text that is shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        self.text += data


def test_every_section_stands_on_a_whole_page(every_page):
    page = every_page
    reader = Reader(page)
    assert reader.open == []
    assert {kind for kind in SECTIONS if f"<section id='{kind}'>" in page} == set(SECTIONS)
    assert reader.tags.count("figure") == reader.tags.count("svg") > 15
    assert len(page) < 1_000_000


def test_a_page_needs_nothing_and_runs_nothing(every_page):
    reader = Reader(every_page)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    targets = [value for name, value in reader.attributes if name in ("src", "href", "xlink:href")]
    assert all(target.startswith("#") for target in targets)
    policies = [value for name, value in reader.attributes if name == "content" and "default-src" in value]
    assert policies[0].startswith("default-src 'none'")


def test_every_figure_says_where_it_was_measured(make_ladder):
    page = build_page(parts_of(make_ladder(), "x.json"))
    figures = page.split("<figure>")[1:]
    assert figures
    for figure in figures:
        assert "commit 0123456789 with changes · A fine CPU, 8 cores · 2026-11-30" in figure
    assert "threefold bench something --label &#39;a b&#39;" in page


def test_text_of_a_user_is_text(
    make_serve, make_envelope, make_ladder, make_comparison, make_step_load, make_steps, portrait_result, nasty
):
    comparison = make_comparison()
    comparison["ended"] = nasty
    results = [
        make_serve(label=nasty, model_id=nasty, dataset=nasty, remarks=[nasty], failures={nasty: 1}, command=nasty),
        make_envelope(nasty),
        make_ladder(nasty),
        comparison,
        make_step_load(nasty),
        make_steps(model=nasty),
        portrait_result,
    ]
    parts = [part for result in results for part in parts_of(result, nasty)]
    page = build_page(parts, title=nasty, include_text=True)
    reader = Reader(page)
    assert "<script" not in page
    assert "alert(1)</script>" in reader.text
    assert reader.open == []


def test_names_that_fonts_and_files_have_no_letters_for(make_ladder, tmp_path):
    result = make_ladder("模型 \ud800 $a_b$ \x07")
    for step in result["ladders"][0]["steps"]:
        step["rung"] += " 模型 $\\frac{1}$ \ud800"
    write_report(tmp_path / "page.html", parts_of(result, "x"), "--output")
    assert "模型 ? $a_b$" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_asked", [False, True])
def test_prompts_are_shown_only_when_asked(portrait_result, is_asked):
    assert "secret number" in portrait_result["samples"][0] or "beginning" in portrait_result["samples"][0]
    page = build_page(parts_of(portrait_result, "x"), include_text=is_asked)
    assert ("the same long beginning" in page) == is_asked


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_servers_message_may_quote_a_prompt(make_serve, is_asked):
    run = make_serve(failures={"HTTP 400: no 'dear diary' here": 3})
    page = build_page(parts_of(run, "x"), include_text=is_asked)
    assert "3 requests failed: HTTP 400" in page
    assert ("dear diary" in page) == is_asked


def test_a_result_that_lacks_what_its_kind_has_is_one_line(make_envelope):
    result = make_envelope()
    del result["cells"][1]["variants"]["off"]
    with pytest.raises(ConfigError, match=r"^x\.json: no whole envelope result, so it cannot be shown \(KeyError"):
        build_page(parts_of(result, "x.json"))


def test_the_page_of_a_command_itself(make_serve, tmp_path: Path):
    write_result_page(str(tmp_path / "new" / "page.html"), make_serve())
    assert (tmp_path / "new" / "page.html").read_text().startswith("<!doctype html>")


def test_a_page_that_cannot_be_written(make_serve, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--html .*: cannot write it"):
        write_result_page(str(tmp_path / "file" / "page.html"), make_serve())
