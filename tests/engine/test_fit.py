"""What the memory plan and the graphs are made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from threefold.bench.dummy import write_dummy
from threefold.config import EngineConfig, ModelConfig, SchedulerConfig
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


def test_a_cpu_has_a_peak_and_no_graphs(opened: Opened) -> None:
    decoder = Decoder(opened.spec, opened.dtype, opened.device.torch_device)
    decoder.load(opened.checkpoint.tensors(opened.dtype, opened.device.torch_device))
    steps = measure_step_facts(opened, decoder)
    assert steps == StepFacts(steps.peak_bytes)
    facts = memory_facts(opened, 1 << 30, steps)
    assert (facts.peak_bytes, facts.graphs_bytes) == (steps.peak_bytes, 0)
