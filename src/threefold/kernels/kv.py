"""Where keys and values lie: one layer's paged cache, its layout and the plain way to write and read it.

Knows nothing about requests. A block holds `block_size` tokens of every KV head, in groups of `lanes` tokens:

    keys     [num_blocks, num_kv_heads, groups, head_dim / pair, lanes, pair]     16 tokens side by side: one vector
    values   [num_blocks, num_kv_heads, groups, lanes / pair, head_dim, pair]     16 channels side by side: one vector

pair = 2 for bf16, whose products take numbers two by two, else 1. So the products of attention read memory in order and
need no sums across lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from threefold.kernels.bodies import is_native

_LANES = 16


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer."""

    keys: torch.Tensor  # [num_blocks, num_kv_heads, groups, head_dim / pair, lanes, pair]
    values: torch.Tensor  # [num_blocks, num_kv_heads, groups, lanes / pair, head_dim, pair]
    block_size: int  # tokens
    has_vector_layout: bool  # whether the compiled CPU bodies can read and write it

    @property
    def lanes(self) -> int:
        """Tokens of a group."""
        return self.keys.shape[4]

    @property
    def num_kv_heads(self) -> int:
        """KV heads of this rank."""
        return self.keys.shape[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write tokens into their slots.

        Args:
            slots: [num_tokens] int64.
            keys: [num_tokens, num_kv_heads, head_dim].
            values: as keys.
        """
        pair, lanes = self.keys.shape[5], self.lanes
        block, place = slots // self.block_size, slots % self.block_size
        group, lane = place // lanes, place % lanes
        self.keys[block, :, group, :, lane] = keys.to(self.keys.dtype).reshape(*keys.shape[:2], -1, pair)
        # A value that is not finite would spoil whoever uses the block next: its weight is zero, and 0 · NaN is NaN.
        values = values.to(self.values.dtype)
        finite = torch.where(values.isfinite(), values, torch.zeros_like(values))
        self.values[block, :, group, lane // pair, :, lane % pair] = finite

    def read(self, blocks: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy a row's keys and values out.

        Args:
            blocks: [n] its block table.
            num_tokens: its context.

        Returns:
            keys and values, each [num_tokens, num_kv_heads, head_dim].
        """
        shape = (-1, self.num_kv_heads, self.values.shape[4])
        keys = self.keys[blocks].permute(0, 2, 4, 1, 3, 5).reshape(shape)
        values = self.values[blocks].permute(0, 2, 3, 5, 1, 4).reshape(shape)
        return keys[:num_tokens], values[:num_tokens]


def allocate(  # noqa: PLR0917 (a shape)
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """An empty cache of one layer.

    Args:
        num_blocks: blocks.
        block_size: tokens a block; multiples of 16 let the compiled bodies serve it.
        num_kv_heads: KV heads of this rank.
        head_dim: width of a head.
        dtype: of keys and values.
        device: where they lie.
    """
    lanes = _LANES if block_size % _LANES == 0 else block_size
    pair = 2 if dtype == torch.bfloat16 and lanes % 2 == 0 and head_dim % 2 == 0 else 1
    head = (num_blocks, num_kv_heads, block_size // lanes)
    # Zeros, not empty: memory that was never written must be finite, and untouched zeros cost no memory.
    return KVCache(
        keys=torch.zeros((*head, head_dim // pair, lanes, pair), dtype=dtype, device=device),
        values=torch.zeros((*head, lanes // pair, head_dim, pair), dtype=dtype, device=device),
        block_size=block_size,
        has_vector_layout=lanes == _LANES and is_native(device, dtype, head_dim // 2),
    )
