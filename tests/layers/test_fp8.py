"""FP8 layers on a CPU: scales by part, output and block, shares of ranks, weights quantised while they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.fp8 import E4M3, quantise_outputs
from threefold.layers.fp8 import Fp8WhileLoading, StoredFp8
from threefold.layers.linear import ColumnParallelLinear, Linear, RowParallelLinear
from threefold.layers.mlp import GatedMLP
from threefold.layers.norm import RMSNorm
from threefold.parallel import single_group

Ranks = Callable[[int], list[Any]]
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
BLOCKS = StoredFp8("weight_scale_inv", "block", (16, 16))


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"a": torch.randn(32, 48).to(E4M3), "b": torch.randn(16, 48).to(E4M3)}


def columns(scheme: Any, group: Any = None, has_bias: bool = False) -> ColumnParallelLinear:
    group = group or single_group()
    return ColumnParallelLinear({"a": 32, "b": 16}, 48, has_bias=has_bias, group=group, scheme=scheme, **CPU)


def load_all(layer: Linear, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        layer.load(*name.split("."), tensor)
    assert layer.missing == []


def test_a_scale_a_part_becomes_one_for_each_output(parts: dict[str, torch.Tensor]) -> None:
    layer, x = columns(StoredFp8("weight_scale", "tensor", has_input_scales=True)), torch.randn(3, 48)
    load_all(layer, {f"{name}.weight": part for name, part in parts.items()} | {
        "a.weight_scale": torch.tensor(0.5), "b.weight_scale": torch.tensor([2.0], dtype=torch.bfloat16),
        "a.input_scale": torch.tensor([0.1]), "b.input_scale": torch.tensor([0.2]),
    })  # fmt: skip
    expected = torch.cat([x @ parts["a"].float().T * 0.5, x @ parts["b"].float().T * 2.0], dim=1)
    torch.testing.assert_close(layer(x), expected)
    assert layer.rounding is None  # a CPU has no products that take rounded activations


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_a_scale_an_output(parts: dict[str, torch.Tensor], shape: tuple[int, ...]) -> None:
    layer, x = columns(StoredFp8("weight_scale", "channel")), torch.randn(3, 48)
    scales = {name: torch.rand(len(part)) + 0.5 for name, part in parts.items()}
    load_all(layer, {f"{name}.weight": part for name, part in parts.items()} | {
        f"{name}.weight_scale": scale.view(shape) for name, scale in scales.items()})  # fmt: skip
    expected = torch.cat([x @ (parts[name].float() * scales[name][:, None]).T for name in "ab"], dim=1)
    torch.testing.assert_close(layer(x), expected)


def test_a_scale_a_block(parts: dict[str, torch.Tensor]) -> None:
    layer, x = columns(BLOCKS), torch.randn(3, 48)
    scales = {"a": torch.rand(2, 3) + 0.5, "b": torch.rand(1, 3) + 0.5}
    load_all(layer, {f"{name}.weight": part for name, part in parts.items()} | {
        f"{name}.weight_scale_inv": scale for name, scale in scales.items()})  # fmt: skip
    wide = {name: scale.repeat_interleave(16, 0).repeat_interleave(16, 1) for name, scale in scales.items()}
    expected = torch.cat([x @ (parts[name].float() * wide[name]).T for name in "ab"], dim=1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("strategy", ["channel", "block"])
def test_two_ranks_share_weights_and_scales(ranks: Ranks, strategy: str) -> None:
    torch.manual_seed(1)
    scheme: Any = BLOCKS if strategy == "block" else StoredFp8("weight_scale_inv", "channel")
    weight, x = torch.randn(32, 64).to(E4M3), torch.randn(3, 64)
    scales = torch.rand(2, 4) + 0.5 if strategy == "block" else torch.rand(32) + 0.5
    wide = scales.repeat_interleave(16, 0).repeat_interleave(16, 1) if strategy == "block" else scales[:, None]
    expected = x @ (weight.float() * wide).T
    tensors = {"o.weight": weight, "o.weight_scale_inv": scales}

    total, halves = torch.zeros(3, 32), []
    for group in ranks(2):
        row = RowParallelLinear("o", 64, 32, has_bias=False, group=group, scheme=scheme, **CPU)
        load_all(row, tensors)
        total += row(x.chunk(2, dim=1)[group.rank].contiguous())
        column = ColumnParallelLinear({"o": 32}, 64, has_bias=False, group=group, scheme=scheme, **CPU)
        load_all(column, tensors)
        halves.append(column(x))
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(torch.cat(halves, dim=1), expected)


def test_blocks_that_do_not_fit_are_refused(ranks: Ranks) -> None:
    parts = {"a": 24, "b": 16}
    layer = ColumnParallelLinear(parts, 48, has_bias=False, group=single_group(), scheme=BLOCKS, **CPU)
    with pytest.raises(ModelLoadError, match=r"a\.weight_scale_inv is stored for 16 outputs at a time, of which 24"):
        layer.load("a", "weight_scale_inv", torch.ones(2, 3))
    with pytest.raises(ModelLoadError, match=r"b\.weight_scale_inv has shape \[2, 3\], the model needs \[1, 3\]"):
        layer.load("b", "weight_scale_inv", torch.ones(2, 3))
    row = RowParallelLinear("o", 48, 16, has_bias=False, group=ranks(2)[1], scheme=BLOCKS, **CPU)
    with pytest.raises(ModelLoadError, match="16 inputs at a time, of which 24 inputs on each of 2 ranks"):
        row.load("o", "weight_scale_inv", torch.ones(1, 3))


def test_weights_are_quantised_while_they_are_loaded() -> None:
    torch.manual_seed(2)
    plain, bias, x = torch.randn(48, 64), torch.randn(48), torch.randn(5, 64)
    layer = ColumnParallelLinear(
        {"a": 32, "b": 16}, 64, has_bias=True, group=single_group(), scheme=Fp8WhileLoading(), **CPU
    )
    load_all(layer, {"a.weight": plain[:32], "b.weight": plain[32:], "a.bias": bias[:32], "b.bias": bias[32:]})

    got, right = layer(x), x @ plain.T + bias
    assert not torch.equal(got, right)
    assert ((got - right).norm() / right.norm()).item() < 0.04
    torch.testing.assert_close(got, x @ quantise_outputs(plain).dequantised(torch.float32).T + bias)


def test_what_weights_take() -> None:
    card, cpu = torch.device("cuda"), torch.device("cpu")
    channel = StoredFp8("weight_scale", "channel")
    assert Fp8WhileLoading().kept_bytes(100, 64, torch.bfloat16, card) == 100 * 64 + 400
    assert channel.kept_bytes(100, 64, torch.bfloat16, card) == 100 * 64 + 400
    assert BLOCKS.kept_bytes(100, 64, torch.bfloat16, card) == 100 * 64 + 4 * 7 * 4
    for scheme in (Fp8WhileLoading(), channel, BLOCKS):
        assert scheme.kept_bytes(100, 64, torch.bfloat16, cpu) == 100 * 64 * 2
        assert scheme.kept_bytes(100, 64, torch.float32, card) == 100 * 64 * 4


def test_an_mlp_of_fp8_hands_plain_tensors_on_where_nothing_rounds() -> None:
    torch.manual_seed(3)
    schemes: dict[str, Any] = {"gate_up_scheme": Fp8WhileLoading(), "down_scheme": Fp8WhileLoading()}
    mlp = GatedMLP(32, 48, has_bias=False, group=single_group(), **CPU, **schemes)
    gate, up, down, x = torch.randn(48, 32), torch.randn(48, 32), torch.randn(32, 48), torch.randn(70, 32)
    load_all(mlp.gate_up, {"gate_proj.weight": gate, "up_proj.weight": up})
    load_all(mlp.down, {"down_proj.weight": down})
    mlp.link()
    norm = RMSNorm(32, 1e-6, **CPU)
    norm.load(torch.ones(32))
    norm.hand_on_to(mlp.gate_up.rounding)

    normed = norm.handed_on(x, None)
    right = (torch.nn.functional.silu(norm(x) @ gate.T) * (norm(x) @ up.T)) @ down.T
    assert ((mlp(normed) - right).norm() / right.norm()).item() < 0.08
