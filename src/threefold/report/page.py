"""A page around its sections: one file that needs nothing else, runs no script and asks no network for anything."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from markupsafe import Markup

from threefold.report.markup import Section, joined

# Nothing but the style within is ever loaded or run, whatever slipped in with a user's data.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_WORDS = (
    ("token", "a piece of a word; models read and write tokens, about four letters of English each"),
    ("TTFT", "time to first token: how long somebody waits before the answer begins"),
    ("TPOT", "time per output token after the first: how fast the answer then runs"),
    ("p50, p90, p99", "half, nine in ten, 99 in 100 requests were at least as good as this"),
    ("knee", "the point beyond which more users at once bring hardly more tokens per second, only longer waits"),
    ("speculation, drafts", "cheap guesses of the next tokens, checked by the model several at a time; the text stays "
     "what the model would have written"),
    ("prefix cache", "keeps what was computed for the beginnings of prompts, for the next prompt that begins alike"),
)  # fmt: skip
_PAGE = Markup("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="threefold report">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1>
<nav>{contents}</nav></header>
<main>
{sections}
</main>
<section id="words"><h2>Words</h2><dl class="words">{words}</dl></section>
</body>
</html>
""")


def render_page(title: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    style = resources.files("threefold.report").joinpath("style.css").read_text(encoding="utf-8")
    contents = joined(Markup("<a href='#{}'>{}</a> ").format(one.anchor, one.title) for one in sections)
    shown = joined(
        Markup("<section id='{}'><h2>{}</h2>\n{}</section>\n").format(one.anchor, one.title, one.body)
        for one in sections
    )
    words = joined(Markup("<dt>{}</dt><dd>{}</dd>").format(word, meaning) for word, meaning in _WORDS)
    page = _PAGE.format(
        policy=_POLICY,
        title=title,
        style=Markup(style),  # noqa: S704 our own file
        contents=contents,
        sections=shown,
        words=words,
    )
    return str(page)
