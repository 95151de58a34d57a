"""What the memory plan and the graphs are made from."""

from __future__ import annotations

import pytest

from threefold.engine.fit import launch_bound_tokens
from threefold.models.spec import ModelSpec

QWEN3_8B = ModelSpec("Qwen3ForCausalLM", 151_936, 4096, 36, 32, 8, 128, 12_288, 40_960, has_tied_head=False)
SMOLLM2 = ModelSpec("LlamaForCausalLM", 49_152, 576, 30, 9, 3, 64, 1536, 8192, has_tied_head=True)


@pytest.mark.parametrize(("spec", "low", "high"), [(QWEN3_8B, 256, 320), (SMOLLM2, 8192, 20_000)])
def test_small_models_are_bound_by_launching_up_to_longer_prompts(spec: ModelSpec, low: int, high: int) -> None:
    assert low <= launch_bound_tokens(spec) < high
