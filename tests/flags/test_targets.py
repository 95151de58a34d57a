"""Latency targets as they are typed, for whatever flag."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, parse_command
from threefold.flags.table import ENGINE_FLAGS, SERVER_FLAGS
from threefold.flags.targets import SERVED, parse_targets, targets_of


def slo(line: str) -> dict[str, float]:
    return dict(engine_config(parse_command(shlex.split(line), SERVER_FLAGS + ENGINE_FLAGS)).slo.targets)


@pytest.mark.parametrize(
    "typed",
    ["--slo ttft:500,tpot:50", "--slo ttft:500 tpot:50", "--slo=ttft:500,tpot:50", "--slo ttft:500 --slo tpot:50.0"],
)
def test_words_and_commas(typed: str) -> None:
    assert slo(f"{typed} --port 1") == {"ttft": 500.0, "tpot": 50.0}


def test_one_alone_and_none() -> None:
    assert slo("--slo 'tpot: 20'") == {"tpot": 20.0}
    assert slo("--port 1") == {}
    assert slo("--slo tpot:20 tpot:30") == {"tpot": 30.0}


@pytest.mark.parametrize(
    "content", ["slo: ttft:500,tpot:50", "slo: [ttft:500, tpot:50]", "slo:\n  ttft: 500\n  tpot: 50"]
)
def test_in_a_file_and_over_it(content: str, tmp_path: Path) -> None:
    path = tmp_path / "threefold.yaml"
    path.write_text(content)
    assert slo(f"--config {path}") == {"ttft": 500.0, "tpot": 50.0}
    assert slo(f"--config {path} --slo tpot:9") == {"tpot": 9.0}


@pytest.mark.parametrize(
    "term", ["''", ",", "' '", "ttft", "ttft:", "ttft:fast", "ttft:0", "ttft:-1", "ttft:nan", "e2el:5", "5", ":5"]
)
def test_nonsense_says_what_would_work(term: str) -> None:
    with pytest.raises(ConfigError, match=f"--slo {term}: wants ttft:MS or tpot:MS, milliseconds above 0"):
        slo(f"--slo {term}")


def test_every_flag_has_its_own_names() -> None:
    names = {"ttft": "ttft", "e2e": "e2el", "e2el": "e2el"}
    assert parse_targets(["ttft:1,e2e:2"], names, "--goodput") == {"ttft": 1.0, "e2el": 2.0}
    with pytest.raises(ConfigError, match="--goodput tpot:3: wants ttft:MS or e2el:MS, milliseconds above 0"):
        parse_targets(["tpot:3"], names, "--goodput")
    assert targets_of(SERVED)("ttft:1,") == (("ttft", 1.0),)
