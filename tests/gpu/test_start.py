"""A start on a card compiles in threads, ahead, and leaves nothing for requests to wait for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from threefold.bench.dummy import write_dummy
from threefold.config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig, SpeculationConfig
from threefold.engine.build import build_engine
from threefold.engine.core import EngineCore
from threefold.request import Request, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Thread and body of whatever is compiled, as it goes."""
    from triton import knobs

    found: list[tuple[str, str]] = []

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            found.append((threading.current_thread().name, src.name))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(knobs.compilation, "listener", listen)
    return found


def test_what_requests_need_is_compiled_ahead(tmp_path: Path, compiled: list[tuple[str, str]]) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(write_dummy("small", tmp_path / "model")), load_format="dummy"),
        cache=CacheConfig(kv_cache_memory_bytes=1 << 30),
        scheduler=SchedulerConfig(max_num_seqs=16),
        speculation=SpeculationConfig(num_speculative_tokens=3, is_adaptive=False),
    )
    core = build_engine(config).core
    assert [body for thread, body in compiled if thread.startswith("compile")]
    num_compiled = len(compiled)
    answer(core)
    assert compiled[num_compiled:] == []


def answer(core: EngineCore) -> None:
    for i, length in enumerate((1, 5, 40, 300, 2000)):
        prompt = [(7 * i + j) % 50 for j in range(length)]
        wish = SamplingParams(temperature=0.5 * (i % 2), max_tokens=20)
        core.add_request(Request(i, prompt, wish, max_total_tokens=length + 20, end_token_ids=frozenset()))
    while core.has_work:
        core.step()


def test_without_graphs_none_is_captured_and_answers_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a graph is captured")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", refuse)
    config = EngineConfig(
        model=ModelConfig(model=str(write_dummy("small", tmp_path / "model")), load_format="dummy"),
        cache=CacheConfig(kv_cache_memory_bytes=1 << 30),
        scheduler=SchedulerConfig(max_num_seqs=16),
        speculation=SpeculationConfig(num_speculative_tokens=3, is_adaptive=False),
        device=DeviceConfig(enforce_eager=True),
    )
    built = build_engine(config)
    assert any(note.startswith("graphs none: as asked") for note in built.info.notes)
    answer(built.core)
