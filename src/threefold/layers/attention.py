"""The attention layer: q, k, v in one product, norm and rotation, paged attention, output product.

Knows nothing about requests. Heads are divided among the ranks of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from threefold.kernels.attention import AttentionPlan, PagedAttention, StepBounds
from threefold.kernels.kv import KVCache, allocate
from threefold.kernels.rotary import HeadNorms, Heads, rotate_and_store
from threefold.layers.linear import ColumnParallelLinear, Inputs, RowParallelLinear
from threefold.layers.norm import RMSNorm
from threefold.layers.quant import QuantScheme
from threefold.parallel import Group, shard, single_group

__all__ = ["Attention", "AttentionStep", "KVCache", "PagedAttention", "StepBounds", "allocate_kv", "own_heads"]


class KVShape(Protocol):
    """What the cache's size depends on; models.spec.ModelSpec has it."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def allocate_kv(  # noqa: PLR0917 (a shape)
    spec: KVShape,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    group: Group | None = None,
) -> list[KVCache]:
    """One empty cache a layer.

    Args:
        spec: the model.
        num_blocks: blocks.
        block_size: tokens a block; a multiple of 16 where speed matters.
        dtype: of keys and values; the model's, where speed matters.
        device: where they lie.
        group: ranks that share the KV heads; None = one.
    """
    num_kv_heads = shard(spec.num_kv_heads, group or single_group(), "KV heads")
    return [
        allocate(num_blocks, block_size, num_kv_heads, spec.head_dim, dtype, device) for _ in range(spec.num_layers)
    ]


def own_heads(num_heads: int, num_kv_heads: int, head_dim: int, group: Group) -> Heads:
    """This rank's share of the heads.

    Raises:
        ConfigError: the ranks cannot share them evenly.
    """
    return Heads(shard(num_heads, group, "attention heads"), shard(num_kv_heads, group, "KV heads"), head_dim)


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What a step's tokens mean to an attention layer."""

    angles: torch.Tensor  # [num_tokens, head_dim] float32, cos then sin
    slots: torch.Tensor  # [num_tokens] int64; negative = not stored
    plan: AttentionPlan


class Attention:
    """Multi-head attention over the paged KV cache, grouped queries, rotary positions."""

    def __init__(
        self,
        paged: PagedAttention,
        heads: Heads,
        hidden_size: int,
        *,
        has_qkv_bias: bool,
        has_o_bias: bool,
        qk_norm_eps: float | None,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
        qkv_scheme: QuantScheme | None = None,
        out_scheme: QuantScheme | None = None,
    ) -> None:
        query_size = heads.num_heads * group.size * heads.head_dim
        kv_size = heads.num_kv_heads * group.size * heads.head_dim
        self.qkv = ColumnParallelLinear(
            {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size},
            hidden_size,
            has_bias=has_qkv_bias,
            dtype=dtype,
            device=device,
            group=group,
            scheme=qkv_scheme,
        )
        self.out = RowParallelLinear(
            "o_proj",
            query_size,
            hidden_size,
            has_bias=has_o_bias,
            dtype=dtype,
            device=device,
            group=group,
            scheme=out_scheme,
        )
        self.norms: dict[str, RMSNorm] = {}
        self.head_norms: HeadNorms | None = None
        if qk_norm_eps is not None:
            self.norms = {name: RMSNorm(heads.head_dim, qk_norm_eps, dtype, device) for name in ("q_norm", "k_norm")}
            self.head_norms = HeadNorms(self.norms["q_norm"].weight, self.norms["k_norm"].weight, qk_norm_eps)
        self.paged = paged
        self._rotate_and_store = rotate_and_store(heads, self.head_norms, dtype, device)

    def inner(self, hidden: Inputs, step: AttentionStep, kv: KVCache) -> torch.Tensor:
        """[num_tokens, hidden_size] -> what `out` takes; writes the tokens' keys and values into kv."""
        qkv = self.qkv(hidden)
        self._rotate_and_store(qkv, step.angles, step.slots, kv)
        return self.paged(qkv, kv, step.plan)

    def __call__(self, hidden: Inputs, step: AttentionStep, kv: KVCache) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same in the model's type; writes the tokens' keys and values into kv."""
        return self.out(self.inner(hidden, step, kv))
