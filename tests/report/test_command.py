import sys

import pytest

from threefold import cli


def test_one_page_from_several_files(make_serve, make_ladder, save, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = [save(make_serve(users), f"{users}.json") for users in (4, 1)] + [save(make_ladder(), "ladder.json")]
    out = tmp_path / "new" / "page.html"
    assert cli.main(["report", *files, "-o", str(out), "--title", "Ours & theirs"]) == 0
    page = out.read_text()
    assert "<title>Ours &amp; theirs</title>" in page
    assert page.index("<section id='serve'>") < page.index("<section id='ladder'>")
    assert f"written: {out}" in capsys.readouterr().out


def mistakes(words, capsys) -> str:
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_mistakes_are_one_line(save, capsys):
    pytest.importorskip("matplotlib")
    assert "no result is given" in mistakes(["report"], capsys)
    assert "cannot read it" in mistakes(["report", "/nowhere.json"], capsys)
    assert "known are the JSON files of bench serve" in mistakes(["report", save({"a": 1})], capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["report", "x.json"],
        ["bench", "serve", "--html", "x.html"],
        ["bench", "envelope", "--html", "x.html"],
        ["profile", "x.jsonl", "--html", "x.html"],
        ["advise", "x.jsonl", "--html", "x.html"],
        ["tune", "x.jsonl", "--html", "x.html"],
        ["ladder", "--html", "x.html"],
    ],
)
def test_without_matplotlib_the_line_says_what_to_install(words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "needs matplotlib, which is not installed: pip install 'threefold[plot]'" in mistakes(words, capsys)


def test_help(capsys):
    assert cli.main(["report", "--help"]) == 0
    assert "include-text" in capsys.readouterr().out


def test_profile_writes_its_page(log, words_are_bytes, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli.main(["profile", str(log), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "threefold profile" in page
    assert "the same long beginning" not in page
