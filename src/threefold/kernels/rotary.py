"""Rotary embedding (Su et al. 2021) and the write into the paged KV, in one pass over q, k and v.

Contract: query and key heads are RMS-normed where the model has such norms (Qwen3), then rotated by their token's
angles, (a, b) -> (a cos - b sin, b cos + a sin) with a and b a head's halves, in place; keys and values go to their
slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from threefold.kernels.bodies import is_native, is_triton
from threefold.kernels.kv import KVCache
from threefold.kernels.norm import rms_norm_reference


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS norms of query and key heads."""

    query_weight: torch.Tensor  # [head_dim]
    key_weight: torch.Tensor  # [head_dim]
    eps: float


RotateAndStore = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, KVCache], None]


@dataclass(frozen=True, slots=True)
class Heads:
    """How a token of the q, k, v product divides: queries, then keys, then values."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def width(self) -> int:
        """Numbers of one token."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


def rotate_and_store_reference(  # noqa: PLR0917 (an op's operands)
    qkv: torch.Tensor, angles: torch.Tensor, slots: torch.Tensor, kv: KVCache, heads: Heads, norms: HeadNorms | None
) -> None:
    """The contract in torch.

    Args:
        qkv: [num_tokens, heads.width], rotated in place.
        angles: [num_tokens, head_dim] float32, cos then sin.
        slots: [num_tokens] int64; keys and values of tokens whose slot is negative are not stored.
        kv: where keys and values go.
        heads: how qkv divides.
        norms: of query and key heads; None = none.
    """
    num_rotated = heads.num_heads + heads.num_kv_heads
    parts = qkv.view(qkv.shape[0], -1, heads.head_dim)  # [num_tokens, heads, head_dim]
    rotated, values = parts[:, :num_rotated], parts[:, num_rotated:]
    if norms is not None:
        queries, keys = rotated[:, : heads.num_heads], rotated[:, heads.num_heads :]
        for part, weight in ((queries, norms.query_weight), (keys, norms.key_weight)):
            part.copy_(rms_norm_reference(part, None, weight, norms.eps))
    cos, sin = angles[:, None].chunk(2, dim=-1)
    a, b = rotated.float().chunk(2, dim=-1)
    rotated.copy_(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1))
    kv.write(slots, rotated[:, heads.num_heads :], values)


def rotate_and_store(heads: Heads, norms: HeadNorms | None, dtype: torch.dtype, device: torch.device) -> RotateAndStore:
    """The fastest body for these heads: a function of (qkv, angles, slots, kv)."""
    if is_triton(device, dtype):
        from threefold.kernels.triton.rotary import rotate_and_store_body

        return rotate_and_store_body(heads, norms)
    if is_native(device, dtype, heads.head_dim // 2):
        native = _native(heads, norms, dtype)

        def choose(qkv: torch.Tensor, angles: torch.Tensor, slots: torch.Tensor, kv: KVCache) -> None:
            if kv.has_vector_layout and kv.keys.dtype == dtype:
                native(qkv, angles, slots, kv)
            else:
                rotate_and_store_reference(qkv, angles, slots, kv, heads, norms)

        return choose
    return lambda qkv, angles, slots, kv: rotate_and_store_reference(qkv, angles, slots, kv, heads, norms)


def _native(heads: Heads, norms: HeadNorms | None, dtype: torch.dtype) -> RotateAndStore:
    from threefold.kernels.native.rotary import TOKENS_PER_ITEM, rotate_and_store_body

    run = rotate_and_store_body(heads.head_dim, dtype.itemsize)
    epsilon = torch.tensor([0.0 if norms is None else norms.eps], dtype=torch.float32)
    weights = (0, 0) if norms is None else (norms.query_weight.data_ptr(), norms.key_weight.data_ptr())

    def rotate(qkv: torch.Tensor, angles: torch.Tensor, slots: torch.Tensor, kv: KVCache) -> None:
        num_tokens = qkv.shape[0]
        run(
            -(-num_tokens // TOKENS_PER_ITEM),
            qkv.data_ptr(),
            num_tokens,
            heads.num_heads,
            heads.num_kv_heads,
            angles.data_ptr(),
            slots.data_ptr(),
            kv.keys.data_ptr(),
            kv.values.data_ptr(),
            kv.block_size,
            int(norms is not None),
            *weights,
            epsilon.data_ptr(),
        )

    return rotate
