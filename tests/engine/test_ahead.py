"""What steps need compiled is found with a short model of the same widths."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from threefold.bench.dummy import write_dummy
from threefold.config import EngineConfig, ModelConfig, SchedulerConfig
from threefold.engine import ahead
from threefold.engine.opened import open_engine
from threefold.models.checkpoint import open_checkpoint


def test_a_short_model_has_the_widths_of_the_whole_one(tmp_path: Path) -> None:
    spec = open_checkpoint(write_dummy("small-draft", tmp_path), "dummy").spec
    short = ahead.shortened(spec)
    assert short.num_layers == 2 < spec.num_layers
    assert replace(short, num_layers=spec.num_layers) == spec
    assert ahead.shortened(replace(spec, num_layers=1)).num_layers == 1


def test_a_short_model_has_layers_with_and_without_a_window(tmp_path: Path) -> None:
    spec = open_checkpoint(write_dummy("small-draft", tmp_path), "dummy").spec
    some = replace(spec, sliding_window=64, window_layers=tuple(range(2, spec.num_layers)))
    assert ahead.shortened(some).window_layers == (1,)
    assert ahead.shortened(replace(spec, sliding_window=64)).window_layers == (), "all of them have it"


def test_on_a_cpu_nothing_is_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_rehearse", lambda *_: pytest.fail("rehearsed"))
    model = str(write_dummy("small-draft", tmp_path))
    config = EngineConfig(
        model=ModelConfig(model=model, load_format="dummy", dtype="float32"),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
    )
    with ahead.bodies_compiled(open_engine(config)):
        pass


class FakeCompiling:
    """In place of threads that compile; Triton itself is not imported here, since other tests want its interpreter."""

    def __init__(self, num_threads: int) -> None:
        assert num_threads > 0

    def __enter__(self) -> FakeCompiling:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rehearsal(self) -> AbstractContextManager[None]:
        return nullcontext()


class FakeCard:
    """As far as a rehearsal that fails at once asks."""

    is_gpu = True
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.num_released = 0

    def release_unused(self) -> None:
        self.num_released += 1


def test_a_rehearsal_that_fails_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = str(write_dummy("small-draft", tmp_path))
    opened = open_engine(EngineConfig(model=ModelConfig(model=model, load_format="dummy", dtype="float32")))
    monkeypatch.setattr(ahead, "Decoder", lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA out of memory")))
    module = ModuleType("threefold.kernels.triton.ahead")
    module.CompiledAhead = FakeCompiling  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    card = FakeCard()
    done = []
    with ahead.bodies_compiled(replace(opened, device=card)):
        done.append("weights")
    assert done == ["weights"]
    assert card.num_released == 1
    assert "CUDA out of memory" in caplog.text
