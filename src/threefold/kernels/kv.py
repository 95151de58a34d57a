"""Where keys and values lie: one layer's paged cache, its layouts and the plain way to write and read it.

Knows nothing about requests. A block holds `block_size` tokens of every KV head. On a CPU they lie in groups of `lanes`
tokens, so that the products of attention read memory in order and need no sums across lanes:

    keys     [num_blocks, num_kv_heads, groups, head_dim / pair, lanes, pair]     16 tokens side by side: one vector
    values   [num_blocks, num_kv_heads, groups, lanes / pair, head_dim, pair]     16 channels side by side: one vector

pair = 2 for bf16, whose products take numbers two by two, else 1. On a card token by token, so that what one program
reads of a block, one head's tokens, is one piece of memory:

    keys and values   [num_blocks, num_kv_heads, block_size, head_dim]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from threefold.kernels.bodies import is_native
from threefold.kernels.pages import zeros_in_large_pages

FP8 = torch.float8_e4m3fn
_LANES = 16
_TOKEN_DIMS = 4  # of tensors that lie token by token


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of one layer."""

    keys: torch.Tensor  # in one of the layouts above
    values: torch.Tensor
    block_size: int  # tokens
    has_vector_layout: bool  # whether the compiled CPU bodies can read and write it
    key_scale: torch.Tensor  # [1] float32: a key is what is stored times this; 1 but for FP8
    value_scale: torch.Tensor  # [1] float32, the same for values

    @property
    def has_token_layout(self) -> bool:
        """Whether it lies token by token, as the bodies on a card read it."""
        return self.keys.dim() == _TOKEN_DIMS

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
            slots: [num_tokens] int64; tokens whose slot is negative are left out.
            keys: [num_tokens, num_kv_heads, head_dim].
            values: as keys.
        """
        is_real = slots >= 0
        slots = slots[is_real]
        keys = _stored(keys[is_real], self.key_scale, self.keys.dtype)
        values = values[is_real]
        # A value that is not finite would spoil whoever uses the block next: its weight is zero, and 0 · NaN is NaN.
        values = _stored(torch.where(values.isfinite(), values, 0.0), self.value_scale, self.values.dtype)
        block, place = slots // self.block_size, slots % self.block_size
        to_keys, to_values = _as_bytes(self.keys), _as_bytes(self.values)
        if self.has_token_layout:
            to_keys[block, :, place], to_values[block, :, place] = keys, values
            return
        pair, lanes = self.keys.shape[5], self.lanes
        group, lane = place // lanes, place % lanes
        to_keys[block, :, group, :, lane] = keys.reshape(*keys.shape[:2], self.keys.shape[3], pair)
        to_values[block, :, group, lane // pair, :, lane % pair] = values

    def read(self, blocks: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy a row's keys and values out.

        Args:
            blocks: [n] its block table.
            num_tokens: its context.

        Returns:
            keys and values, each [num_tokens, num_kv_heads, head_dim], in float32 where they are stored in FP8.
        """
        keys, values = _as_bytes(self.keys)[blocks], _as_bytes(self.values)[blocks]
        if self.has_token_layout:
            keys, values = keys.transpose(1, 2).flatten(0, 1), values.transpose(1, 2).flatten(0, 1)
        else:
            shape = (-1, self.num_kv_heads, self.values.shape[4])
            keys = keys.permute(0, 2, 4, 1, 3, 5).reshape(shape)
            values = values.permute(0, 2, 3, 5, 1, 4).reshape(shape)
        if self.keys.dtype == FP8:
            keys = keys.view(FP8).float() * self.key_scale
            values = values.view(FP8).float() * self.value_scale
        return keys[:num_tokens], values[:num_tokens]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """FP8 as bytes, since torch can index those everywhere; all else as it is."""
    return tensor.view(torch.uint8) if tensor.dtype == FP8 else tensor


def _stored(numbers: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers as the cache holds them; FP8 has no infinity, so large ones become its largest."""
    if dtype != FP8:
        return numbers.to(dtype)
    largest = torch.finfo(FP8).max
    return (numbers.float() / scale).clamp(-largest, largest).to(FP8).view(torch.uint8)


def allocate(  # noqa: PLR0917 (a shape)
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """An empty cache of one layer, in the layout that its device reads best.

    Args:
        num_blocks: blocks.
        block_size: tokens a block; multiples of 16 let the compiled bodies serve it.
        num_kv_heads: KV heads of this rank.
        head_dim: width of a head.
        dtype: of keys and values.
        device: where they lie.
    """
    if device.type == "cuda":
        return allocate_by_token(num_blocks, block_size, num_kv_heads, head_dim, dtype, device)
    lanes = _LANES if block_size % _LANES == 0 else block_size
    pair = 2 if dtype == torch.bfloat16 and lanes % 2 == 0 and head_dim % 2 == 0 else 1
    head = (num_blocks, num_kv_heads, block_size // lanes)
    return KVCache(
        keys=_untouched_zeros((*head, head_dim // pair, lanes, pair), dtype),
        values=_untouched_zeros((*head, lanes // pair, head_dim, pair), dtype),
        block_size=block_size,
        has_vector_layout=lanes == _LANES and is_native(device, dtype, head_dim // 2),
        key_scale=torch.ones(1, device=device),
        value_scale=torch.ones(1, device=device),
    )


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros, since memory that was never written must be finite: the system's own, which cost neither time nor memory
    until they are written, where torch would write each of them.
    """
    return zeros_in_large_pages(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)


def allocate_by_token(  # noqa: PLR0917 (a shape)
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> KVCache:
    """An empty cache in the layout of the bodies on a card; arguments as of `allocate`."""
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    return KVCache(
        keys=torch.zeros(shape, dtype=dtype, device=device),
        values=torch.zeros(shape, dtype=dtype, device=device),
        block_size=block_size,
        has_vector_layout=False,
        key_scale=torch.ones(1, device=device),
        value_scale=torch.ones(1, device=device),
    )
