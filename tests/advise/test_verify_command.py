"""Advice on a model without weights, verified kind by kind: a whole command, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from threefold import cli
from threefold.advise.options import AdviseOptions
from threefold.advise.verify_command import check_verification
from threefold.bench.dummy import write_dummy
from threefold.errors import ConfigError


@pytest.fixture
def words(write_log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    model = str(write_dummy("small-draft", tmp_path / "model"))
    entries = [{"prompt": f"{'a beginning that all share ' * 2}{index}", "category": "one"} for index in range(6)]
    entries += [
        {"prompt": f"{index} something short", "output": "and its answer", "category": "two"} for index in range(3)
    ]
    entries.append({"prompt": "x" * 300, "category": "longer than the model's context"})
    flags = [
        "--load-format",
        "dummy",
        "--dtype",
        "float32",
        "--max-model-len",
        "128",
        "--num-gpu-blocks-override",
        "64",
    ]
    flags += ["--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--output-tokens", "8"]
    return ["advise", model, str(write_log(entries)), *flags]


def test_a_model_without_weights_is_advised_and_verified(words: list[str], tmp_path: Path, capsys) -> None:
    out, table = tmp_path / "advice.json", tmp_path / "table.md"
    asked = ["--verify", "--by-kind", "--users", "4", "--rounds", "1", "--json", str(out), "--markdown", str(table)]
    assert cli.main([*words, *asked]) == 0

    result = json.loads(out.read_text())
    verdicts = {one["lever"]: one for one in result["advice"]["verdicts"]}
    for drafter in ("ngram", "suffix"):
        assert verdicts[drafter]["verdict"] == "cannot say"
        assert "the weights are made up" in verdicts[drafter]["reason"]
    assert result["facts"]["is_dummy"]
    cells = [(cell["load"], cell["lever"]) for cell in result["verification"]]
    assert cells == [("one", "max_num_seqs 2 → 4"), ("one", "prefix caching")]
    shown = capsys.readouterr()
    assert "two: 3 requests are too few for 4 users" in shown.err
    assert "predicted against measured" in shown.out
    lines = table.read_text().splitlines()
    assert lines[0].startswith("`threefold advise")
    assert lines[4].startswith("| one | max_num_seqs 2 → 4 | 4 | 6 |")


def test_quantisation_is_verified_on_cards_only(words: list[str], capsys) -> None:
    assert cli.main([*words, "--verify", "--reload", "--users", "1", "--rounds", "1"]) == 2
    assert "nothing is predicted on a CPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (AdviseOptions(is_by_kind=True), "--by-kind says how --verify measures"),
        (AdviseOptions(markdown="x.md"), "--markdown says how --verify measures"),
        (AdviseOptions(is_verified=True, awq_model="x"), "give --reload too"),
    ],
)
def test_flags_that_would_change_nothing(wanted: AdviseOptions, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_verification(wanted)
