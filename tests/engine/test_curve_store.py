"""A measured curve comes back for the same key only; a broken file counts as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from threefold.cost import CostCurve, StepShape
from threefold.engine.curve_store import CurveStore


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path))
    return tmp_path


def curve() -> CostCurve:
    return CostCurve([(1, 10.0), (8, 12.0), (64, 50.0)], kv_token_ms=0.001)


def test_what_is_saved_is_loaded_for_the_same_key_only() -> None:
    shape = StepShape(16, 4, 1000)
    CurveStore({"model": "a", "threads": 2}).save(curve())

    loaded = CurveStore({"threads": 2, "model": "a"}).load()

    assert loaded is not None
    assert curve().ms(shape) == pytest.approx(loaded.ms(shape))
    assert CurveStore({"model": "a", "threads": 4}).load() is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"curve": {}}', '{"curve": {"knots": [[1, -1], [2, 3]]}}'])
def test_a_broken_file_counts_as_none(content: str) -> None:
    store = CurveStore({"model": "a"})
    store.save(curve())
    store.path.write_text(content)

    assert store.load() is None


def test_a_folder_that_cannot_be_written_is_no_error(own_cache: Path) -> None:
    (own_cache / "curves").write_text("a file where the folder should be")
    store = CurveStore({"model": "a"})

    store.save(curve())

    assert store.load() is None
