"""Angles of each scaling against transformers' own, beside the whole-model tests."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from threefold.layers.rope import RotaryAngles, inverse_frequencies, magnitude
from threefold.models.spec import RopeSpec

CASES: list[tuple[RopeSpec, dict[str, Any]]] = [
    (RopeSpec(scaling="linear", factor=3.0), {"rope_type": "linear", "factor": 3.0}),
    (
        RopeSpec(scaling="llama3", factor=8.0, original_max_positions=256, low_freq_factor=1.0, high_freq_factor=4.0),
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 256, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0},
    ),
    (
        RopeSpec(scaling="yarn", factor=4.0, original_max_positions=256),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rope", "theirs"), CASES, ids=[rope.scaling for rope, _ in CASES])
def test_frequencies_are_those_of_transformers(rope: RopeSpec, theirs: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=1024,
        rope_parameters={"rope_theta": 10000.0, **theirs},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, torch.device("cpu"))

    torch.testing.assert_close(inverse_frequencies(rope, 64, 1024), expected)
    assert factor == pytest.approx(magnitude(rope))


def test_angles_are_cos_then_sin() -> None:
    table = RotaryAngles(RopeSpec(), 4, 64, torch.device("cpu"))(torch.tensor([0, 5]))

    slow = 5 * 10_000.0**-0.5
    expected = [[1.0, 1.0, 0.0, 0.0], [math.cos(5), math.cos(slow), math.sin(5), math.sin(slow)]]
    torch.testing.assert_close(table, torch.tensor(expected))
