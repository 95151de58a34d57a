import subprocess
from pathlib import Path

import pytest

from threefold.bench import machine


def test_a_reading_says_where_it_comes_from() -> None:
    facts = machine.provenance(["bench", "serve", "--label", "two words"])
    assert facts["command"] == "threefold bench serve --label 'two words'"
    assert facts["machine"]["cores"] >= 1
    assert facts["machine"]["cpu"]
    assert facts["machine"]["memory_bytes"] > 2**20
    assert "T" in facts["date"]


def test_commit_of_a_checkout_and_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_PACKAGE", tmp_path)
    assert machine.git_commit() is None

    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "errors.py").write_text("1")
    assert machine.git_commit() is None  # a package lying in a repository that does not hold it
    git("add", ".")
    git("commit", "-q", "-m", "x")
    commit = machine.git_commit()
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "errors.py").write_text("2")
    assert machine.git_commit() == commit + "+changes"
