"""Commands that README and docs print are taken by the program; targets of make, modules and links are there."""

from __future__ import annotations

import ast
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from threefold import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "map.md"})]
_BLOCK = re.compile(r"^    (?=(?:threefold|python -m threefold[\w.]*|make) )", re.MULTILINE)
_INLINE = re.compile(r"`((?:threefold|python -m threefold[\w.]*|make) [^`]+)`")
_SEPARATORS = {";", "&&", "||", "|", ">", "&"}


def words_of(text: str) -> list[str] | None:
    """A shell's words of a command, comments left out; None while a quote is open or a line goes on."""
    if text.endswith("\\"):
        return None
    reader = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:
        return None


def split(words: list[str]) -> list[list[str]]:
    """The commands of one line."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def commands_of(page: str) -> list[list[str]]:
    """Commands of indented blocks and of code in a line, as their words."""
    found: list[list[str]] = []
    for start in _BLOCK.finditer(page):
        lines = page[start.end() :].splitlines()
        for count in range(1, min(len(lines), 8) + 1):
            words = words_of("\n".join(lines[:count]))
            if words is not None:
                found += split(words)
                break
        else:
            pytest.fail(f"a command without an end: {lines[0]}")
    for code in _INLINE.findall(page):
        found += split(words_of(code.replace("\n", " ")) or [])
    return found


def printed() -> list[tuple[str, list[str]]]:
    return [
        (path.relative_to(ROOT).as_posix(), command)
        for path in PAGES
        for command in commands_of(path.read_text(encoding="utf-8"))
        if command[0] in ("threefold", "make", "python")
    ]


def typed(words: list[str]) -> list[str]:
    """With a number where a page says N, without dots for what is left out."""
    return ["1" if re.fullmatch(r"[A-Z]", word) else word for word in words if not set(word) <= set("….,")]


COMMANDS = printed()
OURS = [(page, words) for page, words in COMMANDS if words[0] == "threefold"]


@pytest.mark.parametrize(("page", "words"), OURS, ids=[f"{page}: {' '.join(words)}"[:90] for page, words in OURS])
def test_a_printed_command_is_taken(page: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*typed(words[1:]), "--help"]) == 0, f"{page}: {capsys.readouterr().err}"


def test_modules_and_targets_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for page, words in COMMANDS:
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, page
        if words[:2] == ["python", "-m"]:
            assert find_spec(words[2]), page


def test_python_that_readme_shows_is_python() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGES[0].read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        ast.parse(block)


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_reader_reads_commands() -> None:
    page = """Text `threefold bench http`, and `make serve`.

    threefold serve M --port N \\
        --speculative-config '{"a":1,
          "b":2}'     # why
    threefold bench dummy a ./a; threefold bench dummy b ./b
"""
    assert commands_of(page) == [
        ["threefold", "serve", "M", "--port", "N", "--speculative-config", '{"a":1,\n          "b":2}'],
        ["threefold", "bench", "dummy", "a", "./a"],
        ["threefold", "bench", "dummy", "b", "./b"],
        ["threefold", "bench", "http"],
        ["make", "serve"],
    ]
    assert typed(["serve", "…", "--port", "N"]) == ["serve", "--port", "1"]
