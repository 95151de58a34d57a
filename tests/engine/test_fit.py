"""What the memory plan and the graphs are made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from threefold.bench.dummy import write_dummy
from threefold.config import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from threefold.engine.fit import StepFacts, graph_limits, measure_step_facts, memory_facts
from threefold.engine.opened import Opened, open_engine
from threefold.models.decoder import Decoder


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    model = ModelConfig(str(write_dummy("small-draft", tmp_path)), load_format="dummy", max_model_len=128)
    scheduler = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=512)
    return open_engine(EngineConfig(model=model, scheduler=scheduler))


@pytest.mark.parametrize(("measured", "most"), [(100, 64), (2048, 512)])
def test_prompts_have_graphs_as_far_as_launching_takes_long_and_steps_may_be(
    opened: Opened, measured: int, most: int
) -> None:
    assert graph_limits(opened, opened.spec, 4, 128, measured).prompt_sizes[-1] == most


def test_without_graphs_prompts_have_none_and_little_memory_is_held(opened: Opened) -> None:
    eager = replace(opened, config=replace(opened.config, device=DeviceConfig(enforce_eager=True)))
    assert graph_limits(eager, opened.spec, 4, 128, 2048).prompt_sizes == []
    steps, on_card = StepFacts(peak_bytes=1 << 20, position_bytes=4), FakeCard()
    plain, freed = (
        memory_facts(replace(one, device=on_card), 1 << 30, steps).graphs_bytes  # type: ignore[arg-type]
        for one in (opened, eager)
    )
    assert 0 < freed < plain / 2


class FakeCard:
    """As far as a memory plan asks."""

    is_gpu = True
    torch_device = torch.device("cpu")

    def total_bytes(self) -> int:
        return 1 << 30

    def free_bytes(self) -> int:
        return 1 << 30


def test_a_cpu_has_a_peak_and_no_graphs(opened: Opened) -> None:
    decoder = Decoder(opened.spec, opened.dtype, opened.device.torch_device)
    decoder.load(opened.checkpoint.tensors(opened.dtype, opened.device.torch_device))
    steps = measure_step_facts(opened, decoder)
    assert steps == StepFacts(steps.peak_bytes)
    facts = memory_facts(opened, 1 << 30, steps)
    assert (facts.peak_bytes, facts.graphs_bytes) == (steps.peak_bytes, 0)
