"""All layers of a decoder whose products are packed, in one call on a CPU.

Contract: what the layers' own ops give one after another, but that results which the next product rounds are rounded
straight from float32. A token's result is the same number however many tokens stand beside it.

A layer is eight links of one chain (native/chain.py): between two of them threads meet, Python has no part in it, and
no number is written that the next link would only read to round it. Weights lie in the order in which they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from threefold.kernels.attention import HostPlan, PagedAttention
from threefold.kernels.kv import KVCache
from threefold.kernels.packed import PackedProduct
from threefold.kernels.pages import gathered
from threefold.kernels.rotary import HeadNorms, Heads

if TYPE_CHECKING:
    from threefold.kernels.native.team import Run

_NORM, _QKV, _ROTATE, _ATTEND, _OUT, _MLP_NORM, _GATE_UP, _DOWN = range(8)
_LINKS = 8
_NORMS, _NORMED, _SUMMED = slice(_NORM, None, 5), slice(_QKV, None, 5), slice(_OUT, None, 3)
"""Both norms, both products behind them, both products that add to the stream."""
_ITEMS = 1  # where a frame has its number of items


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """What one layer is made of; all in bfloat16 but for the products' weights."""

    input_norm: torch.Tensor  # [hidden_size]
    qkv: PackedProduct
    head_norms: HeadNorms | None
    attention: PagedAttention
    out: PackedProduct
    attention_norm: torch.Tensor  # [hidden_size]
    gate_up: PackedProduct
    down: PackedProduct

    @property
    def products(self) -> tuple[PackedProduct, PackedProduct, PackedProduct, PackedProduct]:
        """In the order in which they are read."""
        return self.qkv, self.out, self.gate_up, self.down


class PackedLayers:
    """The layers.

    Args:
        layers: in order; their products' weights are moved together.
        heads: of all of them.
        eps: of their norms.
    """

    def __init__(self, layers: Sequence[PackedLayer], heads: Heads, eps: float) -> None:
        from threefold.kernels.native.chain import Chain

        self._layers = list(layers)
        self._heads = heads
        self._eps = torch.tensor([eps], dtype=torch.float32)
        self._head_eps = [torch.tensor([one.head_norms.eps if one.head_norms else 0.0]) for one in layers]
        _move_together(self._layers)
        self._chain = Chain([body for layer in layers for body in _bodies(layer, heads)])
        self._links = self._chain.frames.reshape(len(layers), _LINKS, -1)
        self._attentions: dict[PagedAttention, list[int]] = {}
        for index, layer in enumerate(layers):
            self._attentions.setdefault(layer.attention, []).append(index)
            self._fill_in(index, layer)

    def _fill_in(self, index: int, layer: PackedLayer) -> None:
        """What is the same in every step."""
        links, heads = self._links[index], self._heads
        links[_NORM, 3], links[_MLP_NORM, 3] = layer.input_norm.data_ptr(), layer.attention_norm.data_ptr()
        links[_NORMS, 5:7] = layer.qkv.num_records, self._eps.data_ptr()
        for link, product in zip((_QKV, _OUT, _GATE_UP, _DOWN), layer.products, strict=True):
            num_items, parts_each = product.cut
            links[link, _ITEMS] = num_items
            links[link, 3:5] = product.records.data_ptr(), product.bias.data_ptr()
            links[link, 7:10] = product.num_records, product.width, parts_each
        norms = layer.head_norms
        weights = (0, 0) if norms is None else (norms.query_weight.data_ptr(), norms.key_weight.data_ptr())
        links[_ROTATE, 4:6] = heads.num_heads, heads.num_kv_heads
        links[_ROTATE, 11:15] = int(norms is not None), *weights, self._head_eps[index].data_ptr()

    def __call__(
        self,
        stream: torch.Tensor,
        angles: torch.Tensor,
        slots: torch.Tensor,
        plans: Sequence[HostPlan],
        kv: Sequence[KVCache],
    ) -> None:
        """Run the layers on the stream, [num_tokens, hidden_size], in place; the tokens' keys and values go into kv.

        Args:
            stream: the tokens' embeddings, then what the layers summed up.
            angles: [num_tokens, head_dim] float32, cos then sin.
            slots: [num_tokens] int64.
            plans: of each layer's attention.
            kv: one cache a layer.
        """
        from threefold.kernels.native.rotary import TOKENS_PER_ITEM

        links, num_tokens, first = self._links, stream.shape[0], self._layers[0]
        qkv = stream.new_empty((num_tokens, self._heads.width))
        normed, attended, gated = (
            product.memory_for_inputs(num_tokens) for product in (first.qkv, first.out, first.down)
        )
        links[:, _NORMS, _ITEMS] = num_tokens
        links[:, _NORMS, 2] = stream.data_ptr()
        links[:, _NORMS, 4] = normed.data_ptr()
        links[:, _NORMED, 2] = normed.data_ptr()
        links[:, _NORMED, 6] = num_tokens
        links[:, _QKV, 5] = qkv.data_ptr()
        links[:, _GATE_UP, 5] = gated.data_ptr()
        links[:, _SUMMED, 5] = stream.data_ptr()
        links[:, _SUMMED, 6] = num_tokens
        links[:, _OUT, 2] = attended.data_ptr()
        links[:, _DOWN, 2] = gated.data_ptr()
        caches = np.array([(one.keys.data_ptr(), one.values.data_ptr()) for one in kv])
        links[:, _ROTATE, _ITEMS] = -(-num_tokens // TOKENS_PER_ITEM)
        links[:, _ROTATE, 2:4] = qkv.data_ptr(), num_tokens
        links[:, _ROTATE, 6:8] = angles.data_ptr(), slots.data_ptr()
        links[:, _ROTATE, 8:10] = caches
        links[:, _ROTATE, 10] = kv[0].block_size
        for attention, members in self._attentions.items():
            place, records = attended.data_ptr(), first.out.num_records
            arguments = attention.arguments(qkv, kv[members[0]], plans[members[0]], place, records)
            links[members, _ATTEND, _ITEMS : _ITEMS + len(arguments)] = arguments
        links[:, _ATTEND, 4:6] = caches
        self._chain.run()


def _bodies(layer: PackedLayer, heads: Heads) -> list[Run]:
    from threefold.kernels.native.attention import attention_body
    from threefold.kernels.native.packed import gated_body, packed_body, rounded_norm_body
    from threefold.kernels.native.rotary import rotate_and_store_body

    size = layer.input_norm.element_size()
    return [
        rounded_norm_body(layer.qkv.form.zero, size),
        packed_body(layer.qkv.form, size),
        rotate_and_store_body(heads.head_dim, size),
        attention_body(heads.head_dim, heads.group, size, layer.out.form.zero),
        packed_body(layer.out.form, size, is_added=True),
        rounded_norm_body(layer.gate_up.form.zero, size),
        gated_body(layer.gate_up.form, size, layer.down.form.zero),
        packed_body(layer.down.form, size, is_added=True),
    ]


def _move_together(layers: Sequence[PackedLayer]) -> None:
    products = [product for layer in layers for product in layer.products]
    records = []
    for product in products:
        records.append(product.records)
        del product.records
    for product, moved in zip(products, gathered(records), strict=True):
        product.records = moved
