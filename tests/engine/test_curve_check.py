"""A curve that was stored on another kind of day gives way to one that is measured now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from threefold.bench.dummy import write_dummy
from threefold.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from threefold.engine.build import load_engine
from threefold.engine.loaded import check_curve


def test_a_curve_of_another_machine_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    model = str(write_dummy("small-draft", tmp_path / "model"))
    loaded = load_engine(
        EngineConfig(
            model=ModelConfig(model=model, load_format="dummy", dtype="float32", max_model_len=128),
            cache=CacheConfig(num_blocks=32),
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        )
    )
    assert check_curve(loaded) is loaded, "nothing is stored"
    assert loaded.cost_curve()[1] == "step costs measured now"

    (path,) = (tmp_path / "cache" / "curves").glob("*.json")
    stored = json.loads(path.read_text())
    stored["curve"]["knots"] = [[tokens, 100 * ms] for tokens, ms in stored["curve"]["knots"]]
    path.write_text(json.dumps(stored))
    assert loaded.cost_curve()[1].startswith("step costs measured earlier")

    checked = check_curve(loaded)
    curve, source = checked.cost_curve()
    assert source.startswith("step costs measured anew, steps take 0.0")
    assert curve.to_dict()["knots"][0][1] < stored["curve"]["knots"][0][1] / 10
