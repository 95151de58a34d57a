"""KV scales that a checkpoint brings: every name that tools give them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.models.kv_scales import KVScales, checkpoint_kv_scales
from threefold.models.shapes import expected_shapes
from threefold.models.spec import ModelSpec
from threefold.models.weights import DummyWeights, SafetensorsWeights

SPEC = ModelSpec("LlamaForCausalLM", 32, 16, 2, 2, 1, 8, 24, 64)
NAMES = [
    ("k_scale", "v_scale"),
    ("attn.k_scale", "attn.v_scale"),
    ("k_proj.k_scale", "v_proj.v_scale"),
    ("k_proj.output_scale", "v_proj.output_scale"),
]


@pytest.fixture
def opened(save_folder: Callable[..., Path]) -> Callable[..., SafetensorsWeights]:
    """A checkpoint with more tensors beside its weights, named within layers."""

    def make(more: dict[str, torch.Tensor]) -> SafetensorsWeights:
        weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in expected_shapes(SPEC).items()}
        return SafetensorsWeights(
            save_folder(weights | {f"model.layers.{name}": tensor for name, tensor in more.items()}), SPEC
        )

    return make


@pytest.mark.parametrize(("key", "value"), NAMES)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_come_layer_by_layer_and_are_no_weights(opened, key, value, shape) -> None:
    source = opened(
        {
            f"{layer}.self_attn.{name}": torch.full(shape, number)
            for layer, numbers in enumerate(((0.5, 2.0), (0.25, 3.0)))
            for name, number in zip((key, value), numbers, strict=True)
        }
    )

    assert [KVScales(0.5, 2.0), KVScales(0.25, 3.0)] == checkpoint_kv_scales(source, 2)
    assert set(expected_shapes(SPEC)) == {name for name, _ in source.read(torch.bfloat16)}


def test_a_checkpoint_without_scales_has_none(opened) -> None:
    assert checkpoint_kv_scales(opened({}), 2) is None
    assert checkpoint_kv_scales(DummyWeights(SPEC, 0), 2) is None


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        ({"0.self_attn.k_scale": 1.0, "0.self_attn.v_scale": 1.0}, "lacks them for 1 of 2, layer 1 first"),
        ({"0.self_attn.k_scale": 1.0, "1.self_attn.v_scale": 1.0}, "lacks them for 2 of 2, layer 0 first"),
        ({"0.self_attn.k_scale": 0.0}, "one positive number, this is 0"),
        ({"0.self_attn.k_scale": float("nan")}, "one positive number, this is nan"),
        ({"0.self_attn.k_scale": [1.0, 2.0]}, r"one positive number, this is nan of shape \[2\]"),
    ],
)
def test_what_is_refused(opened, scales, said) -> None:
    source = opened({name: torch.tensor(number) for name, number in scales.items()})

    with pytest.raises(ModelLoadError, match=said):
        checkpoint_kv_scales(source, 2)
