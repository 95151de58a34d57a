"""The attention layer by two ranks sums up to that by one, each rank with its own heads and cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from threefold.errors import ConfigError
from threefold.layers.attention import Attention, AttentionStep, PagedAttention, allocate_kv, own_heads

CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN, NUM_TOKENS = 4, 2, 32, 48, 20
SIZES = {"q_proj": 128, "k_proj": 64, "v_proj": 64}


@dataclass
class Shape:
    num_layers: int = 3
    num_kv_heads: int = NUM_KV_HEADS
    head_dim: int = HEAD_DIM


def attend(group: Any, weights: dict[str, torch.Tensor], hidden: torch.Tensor) -> torch.Tensor:
    """A prompt of one row through this rank's share of the layer."""
    heads = own_heads(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, group)
    paged = PagedAttention(heads, HEAD_DIM**-0.5, None, **CPU)
    layer = Attention(
        paged, heads, HIDDEN, has_qkv_bias=True, has_o_bias=True, qk_norm_eps=1e-6, group=group, **CPU
    )  # fmt: skip
    for name in SIZES:
        layer.qkv.load(name, "weight", weights[name])
        layer.qkv.load(name, "bias", weights[name][:, 0])
    layer.out.load("o_proj", "weight", weights["o_proj"])
    layer.out.load("o_proj", "bias", weights["o_proj"][:, 0])
    for name, norm in layer.norms.items():
        norm.load(weights[name])
    kv = allocate_kv(Shape(), 2, 16, torch.float32, CPU["device"], group)
    angles = torch.arange(NUM_TOKENS)[:, None] * torch.linspace(0.1, 1.0, HEAD_DIM // 2)
    plan = paged.plan(
        torch.tensor([0, NUM_TOKENS], dtype=torch.int32),
        torch.tensor([NUM_TOKENS], dtype=torch.int32),
        torch.tensor([[1, 0]], dtype=torch.int32),
    )
    slots = torch.cat([torch.arange(16, 32), torch.arange(4)])
    return layer(hidden, AttentionStep(torch.cat([angles.cos(), angles.sin()], dim=1), slots, plan), kv[0])


def test_two_ranks_sum_up_to_one(ranks: Callable[[int], list[Any]]) -> None:
    torch.manual_seed(0)
    weights = {name: torch.randn(size, HIDDEN) / 4 for name, size in SIZES.items()}
    weights |= {"o_proj": torch.randn(HIDDEN, 128) / 4, "q_norm": torch.rand(HEAD_DIM), "k_norm": torch.rand(HEAD_DIM)}
    hidden = torch.randn(NUM_TOKENS, HIDDEN)

    one = attend(ranks(1)[0], weights, hidden)
    two = sum(attend(group, weights, hidden) for group in ranks(2))

    assert one.std() > 0.1
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


def test_each_rank_has_the_cache_of_its_heads(ranks: Callable[[int], list[Any]]) -> None:
    whole = allocate_kv(Shape(), 5, 16, torch.bfloat16, CPU["device"])
    half = allocate_kv(Shape(), 5, 16, torch.bfloat16, CPU["device"], ranks(2)[1])

    assert 3 == len(whole) == len(half)
    assert (2, 1) == (whole[0].num_kv_heads, half[0].num_kv_heads)
    assert 2 * 5 * 16 * NUM_KV_HEADS * HEAD_DIM * 2 == whole[0].num_bytes == 2 * half[0].num_bytes


def test_heads_that_ranks_cannot_share_are_refused(ranks: Callable[[int], list[Any]]) -> None:
    with pytest.raises(ConfigError, match="KV heads, 2"):
        own_heads(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, ranks(4)[0])
