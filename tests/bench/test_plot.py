import sys
from pathlib import Path

import pytest

from threefold.bench.envelope_cell import Cell, Run, describe
from threefold.bench.plot import check_plot, plot_envelope, plot_step_load
from threefold.bench.step_load import StepRecord, changes
from threefold.errors import ConfigError
from threefold.metrics import EngineStats


def test_no_picture_asked_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    check_plot(None)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'threefold\[plot\]'"):
        check_plot("out.svg")


def test_a_kind_of_file_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match="wants a file ending in"):
        check_plot("out.jpg")


def cells() -> list[dict]:
    runs = {
        name: [Run(speed, 0, [[1]], EngineStats()) for speed in (90.0, 100.0, 105.0)]
        for name in ("off", "gated", "fixed 2", "adaptive")
    }
    return [
        describe(Cell(group, users, method, 1, 1, runs))
        for group in ("extract", "prose")
        for users in (1, 16)
        for method in ("ngram", "suffix")
    ]


@pytest.mark.parametrize("num_cells", [0, 1, 8])
def test_the_envelope_is_drawn(tmp_path: Path, num_cells: int) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "out.svg"
    plot_envelope(path, {"variants": ["off", "gated", "fixed 2", "adaptive"], "cells": cells()[:num_cells]})
    assert path.read_text().lstrip().startswith("<?xml")


def test_the_step_load_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = [StepRecord(users, users, users, 2 * users, users, users, users, 1.5) for users in [4] * 20 + [8] * 20]
    steps = [{name: getattr(record, name) for name in StepRecord.__slots__} for record in records]
    path = tmp_path / "out.png"
    plot_step_load(path, {"steps": steps, "changes": changes(records)})
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "prompts").write_text("a file where a folder is wanted")
    with pytest.raises(ConfigError, match="cannot write it"):
        plot_envelope(tmp_path / "prompts" / "out.svg", {"variants": [], "cells": []})
