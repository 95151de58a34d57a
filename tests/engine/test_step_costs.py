"""What steps cost is measured when somebody asks, kept, and measured anew on another kind of day."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from threefold.bench.dummy import write_dummy
from threefold.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from threefold.engine import step_costs
from threefold.engine.build import build_engine, load_engine


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    model = str(write_dummy("small-draft", tmp_path / "model"))
    return EngineConfig(
        model=ModelConfig(model=model, load_format="dummy", dtype="float32", max_model_len=128),
        cache=CacheConfig(num_blocks=32),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
    )


def stored_curve(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "curves").glob("*.json")
    return path


def test_a_curve_is_measured_once_and_each_caller_has_its_own(config: EngineConfig, tmp_path: Path) -> None:
    loaded = load_engine(config)
    curve, source = loaded.cost_curve()
    assert source == "step costs measured now"
    path = stored_curve(tmp_path)
    path.unlink()
    curve.observe_draft(1, 8, 8, 1000.0)
    again, source = loaded.cost_curve()
    assert source == "step costs measured now"
    assert again.to_dict() != curve.to_dict(), "what one caller learns is its own"
    assert not path.exists(), "nothing was measured again"


def test_a_stored_curve_is_checked_and_kept(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_engine(config).cost_curve()
    path = stored_curve(tmp_path)
    stored = path.read_text()
    monkeypatch.setattr(step_costs, "slowness", lambda *_: 1.2)
    curve, source = load_engine(config).cost_curve()
    assert source == f"step costs measured earlier ({path.name})"
    assert curve.to_dict() == json.loads(stored)["curve"]
    assert path.read_text() == stored


def test_a_curve_of_another_machine_is_measured_anew(config: EngineConfig, tmp_path: Path) -> None:
    load_engine(config).cost_curve()
    path = stored_curve(tmp_path)
    stored = json.loads(path.read_text())
    stored["curve"]["knots"] = [[tokens, 100 * ms] for tokens, ms in stored["curve"]["knots"]]
    path.write_text(json.dumps(stored))

    loaded = load_engine(config)
    for _ in range(2):
        curve, source = loaded.cost_curve()
        assert source.startswith("step costs measured anew, steps take 0.0")
        assert curve.to_dict()["knots"][0][1] < stored["curve"]["knots"][0][1] / 10
    assert json.loads(path.read_text())["curve"] == curve.to_dict()


def test_without_speculation_and_targets_no_step_is_timed(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_engine(config).cost_curve()
    for name in ("slowness", "measure_steps"):
        monkeypatch.setattr(step_costs, name, lambda *_: pytest.fail("a step was timed"))
    off = EngineConfig(config.model, config.cache, config.scheduler, SpeculationConfig(methods=()))
    info = build_engine(off).info
    assert any(note.startswith("start ") for note in info.notes)
