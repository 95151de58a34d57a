"""The gated MLP: equal to its formula, by one rank and by the sum of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from threefold.errors import ConfigError
from threefold.layers.mlp import GatedMLP

CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("has_bias", [False, True])
def test_ranks_sum_up_to_the_formula(ranks: Callable[[int], list[Any]], num_ranks: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    x, gate, up, down = (torch.randn(shape) for shape in ((3, 24), (64, 24), (64, 24), (24, 64)))
    biases = {name: torch.randn(size) for name, size in (("gate_proj", 64), ("up_proj", 64), ("down_proj", 24))}
    total = torch.zeros(3, 24)
    for group in ranks(num_ranks):
        mlp = GatedMLP(24, 64, has_bias=has_bias, group=group, **CPU)
        for layer, name, weight in ((mlp.gate_up, "gate_proj", gate), (mlp.gate_up, "up_proj", up),
                                    (mlp.down, "down_proj", down)):  # fmt: skip
            layer.load(name, "weight", weight)
            if has_bias:
                layer.load(name, "bias", biases[name])
        total += mlp(x)

    bias = [biases[name] if has_bias else None for name in ("gate_proj", "up_proj", "down_proj")]
    expected = F.linear(F.silu(F.linear(x, gate, bias[0])) * F.linear(x, up, bias[1]), down, bias[2])
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


def test_ranks_that_do_not_divide_are_refused(ranks: Callable[[int], list[Any]]) -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        GatedMLP(24, 64, has_bias=False, group=ranks(3)[0], **CPU)
