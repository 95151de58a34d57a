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


def test_cards_are_named_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "NVIDIA H200, 580.95.05, 143771 MiB\nNVIDIA H200, 580.95.05, 143771 MiB"
    monkeypatch.setattr(machine, "_run", lambda *words: said if words[0] == "nvidia-smi" else None)
    monkeypatch.setattr(machine, "_torch_cuda", lambda: "13.0")
    assert machine.provenance(["x"])["machine"].items() >= {
        "cards": "2 × NVIDIA H200", "card_memory": "143771 MiB", "driver": "580.95.05", "cuda": "13.0",
    }.items()  # fmt: skip


@pytest.mark.parametrize("said", [None, "", "No devices were found"])
def test_no_card_is_no_word(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    monkeypatch.setattr(machine, "_run", lambda *words: said)
    assert machine.cards() == {}


@pytest.mark.parametrize(("cuda", "known"), [("None", None), ("'13.0'", "13.0")])
def test_the_cuda_of_torch_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str, known: str | None
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "version.py").write_text(f"__version__ = '2.11.0'\ncuda: Optional[str] = {cuda}\nhip = None\n")
    spec = machine.find_spec("json")
    assert spec is not None
    spec.origin = str(folder / "__init__.py")
    monkeypatch.setattr(machine, "find_spec", lambda name: spec)
    assert machine._torch_cuda() == known
