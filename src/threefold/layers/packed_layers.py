"""A decoder's layers as one op, where all their products are packed on a CPU (kernels/packed_layers.py).

Knows nothing about models: a layer is two norms, an attention and an MLP around one stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from threefold.kernels.attention import HostPlan, PagedAttention
from threefold.kernels.bodies import is_native
from threefold.kernels.kv import KVCache
from threefold.kernels.packed_layers import PackedLayer, PackedLayers
from threefold.kernels.rotary import Heads
from threefold.layers.attention import Attention, AttentionStep
from threefold.layers.mlp import GatedMLP
from threefold.layers.norm import RMSNorm


class LayerParts(NamedTuple):
    """One layer, loaded."""

    input_norm: RMSNorm
    attention: Attention
    attention_norm: RMSNorm
    mlp: GatedMLP


class LayersAtOnce:
    """The layers.

    Args:
        packed: the op.
        attentions: of each layer.
    """

    def __init__(self, packed: PackedLayers, attentions: Sequence[PagedAttention]) -> None:
        self._packed = packed
        self._attentions = attentions

    def take(self, kv: Sequence[KVCache]) -> bool:
        """Whether they can run over these caches."""
        return all(attention.reads(cache) for attention, cache in zip(self._attentions, kv, strict=True))

    def __call__(self, stream: torch.Tensor, steps: Sequence[AttentionStep], kv: Sequence[KVCache]) -> None:
        """Run all layers on [num_tokens, hidden_size], in place; steps and kv are of each layer."""
        plans = [step.plan for step in steps]
        self._packed(stream, steps[0].angles, steps[0].slots, [p for p in plans if isinstance(p, HostPlan)], kv)


def layers_at_once(layers: Sequence[LayerParts], heads: Heads, num_ranks: int) -> LayersAtOnce | None:
    """The layers as one op; None = they cannot be."""
    packed = [one for layer in layers if (one := _packed(layer)) is not None]
    norm = layers[0].input_norm.weight
    if num_ranks > 1 or len(packed) < len(layers) or not is_native(norm.device, norm.dtype, heads.head_dim // 2):
        return None
    return LayersAtOnce(PackedLayers(packed, heads, layers[0].input_norm.eps), [one.attention for one in packed])


def _packed(layer: LayerParts) -> PackedLayer | None:
    qkv, out = layer.attention.qkv.packed, layer.attention.out.packed
    gate_up, down = layer.mlp.gate_up.packed, layer.mlp.down.packed
    if qkv is None or out is None or gate_up is None or down is None:
        return None
    return PackedLayer(
        layer.input_norm.weight,
        qkv,
        layer.attention.head_norms,
        layer.attention.paged,
        out,
        layer.attention_norm.weight,
        gate_up,
        down,
    )
