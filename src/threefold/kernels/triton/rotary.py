"""Head norms, rotation and the write into the paged KV in one pass over q, k and v. Contract: kernels/rotary.py.

A program takes one token and some of its heads. Memory-bound: each number is read once, queries and keys are written
back, keys and values go to their slot.
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from threefold.kernels.kv import FP8, KVCache
from threefold.kernels.rotary import HeadNorms, Heads

_TILE_NUMBERS = 2048
_LARGEST_FP8 = tl.constexpr(448.0)


@triton.jit
def _normed(numbers, inverse, query_weight_ptr, key_weight_ptr, channels, is_channel, is_query):
    query_weight = tl.load(query_weight_ptr + channels, mask=is_channel, other=0.0).to(tl.float32)
    key_weight = tl.load(key_weight_ptr + channels, mask=is_channel, other=0.0).to(tl.float32)
    weight = tl.where(is_query[:, None], query_weight[None, :], key_weight[None, :])
    return (numbers * inverse[:, None] * weight).to(query_weight_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _store_kv(pointers, numbers, scale, mask, IS_FP8: tl.constexpr):
    if IS_FP8:
        numbers = tl.minimum(tl.maximum(numbers / scale, -_LARGEST_FP8), _LARGEST_FP8)
    tl.store(pointers, numbers.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def _rotate_and_store(
    qkv_ptr,
    angles_ptr,
    slots_ptr,
    keys_ptr,
    values_ptr,
    key_scale_ptr,
    value_scale_ptr,
    query_weight_ptr,
    key_weight_ptr,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    IS_FP8: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    PADDED_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)
    channels = tl.arange(0, PADDED_HALF)
    is_channel = channels < HALF
    is_rotated = heads < NUM_HEADS + NUM_KV_HEADS
    mask = (heads < NUM_HEADS + 2 * NUM_KV_HEADS)[:, None] & is_channel[None, :]
    numbers_ptr = qkv_ptr + token * ((NUM_HEADS + 2 * NUM_KV_HEADS) * 2 * HALF)
    first = numbers_ptr + heads[:, None] * (2 * HALF) + channels[None, :]
    plain_a = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    plain_b = tl.load(first + HALF, mask=mask, other=0.0).to(tl.float32)
    a, b = plain_a, plain_b
    if HAS_NORMS:
        inverse = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)
        is_query = heads < NUM_HEADS
        a = _normed(a, inverse, query_weight_ptr, key_weight_ptr, channels, is_channel, is_query)
        b = _normed(b, inverse, query_weight_ptr + HALF, key_weight_ptr + HALF, channels, is_channel, is_query)
    angles = angles_ptr + token * (2 * HALF) + channels
    cos = tl.load(angles, mask=is_channel, other=0.0)[None, :]
    sin = tl.load(angles + HALF, mask=is_channel, other=0.0)[None, :]
    turned_a, turned_b = a * cos - b * sin, b * cos + a * sin
    is_written = mask & is_rotated[:, None]
    tl.store(first, turned_a.to(qkv_ptr.dtype.element_ty), mask=is_written)
    tl.store(first + HALF, turned_b.to(qkv_ptr.dtype.element_ty), mask=is_written)

    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        # What attention will read of this token is what it wrote back, rounded the same way.
        turned_a = turned_a.to(qkv_ptr.dtype.element_ty).to(tl.float32)
        turned_b = turned_b.to(qkv_ptr.dtype.element_ty).to(tl.float32)
        block_start = (slot // BLOCK_SIZE) * (NUM_KV_HEADS * BLOCK_SIZE * 2 * HALF) + (slot % BLOCK_SIZE) * (2 * HALF)
        key_heads = heads - NUM_HEADS
        is_key = mask & ((key_heads >= 0) & is_rotated)[:, None]
        to_keys = keys_ptr + block_start + key_heads[:, None] * (BLOCK_SIZE * 2 * HALF) + channels[None, :]
        key_scale = tl.load(key_scale_ptr)
        _store_kv(to_keys, turned_a, key_scale, is_key, IS_FP8)
        _store_kv(to_keys + HALF, turned_b, key_scale, is_key, IS_FP8)
        value_heads = key_heads - NUM_KV_HEADS
        is_value = mask & (value_heads >= 0)[:, None]
        to_values = values_ptr + block_start + value_heads[:, None] * (BLOCK_SIZE * 2 * HALF) + channels[None, :]
        value_scale = tl.load(value_scale_ptr)
        _store_kv(to_values, _finite(plain_a), value_scale, is_value, IS_FP8)
        _store_kv(to_values + HALF, _finite(plain_b), value_scale, is_value, IS_FP8)


@triton.jit
def _finite(numbers):
    return tl.where(tl.abs(numbers) < float("inf"), numbers, 0.0)


def rotate_and_store_body(
    heads: Heads, norms: HeadNorms | None
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, KVCache], None]:
    """A function of (qkv, angles, slots, kv); kv lies token by token."""
    half = heads.head_dim // 2
    padded_half = triton.next_power_of_2(half)
    num_all = heads.num_heads + 2 * heads.num_kv_heads
    tile_heads = min(triton.next_power_of_2(num_all), max(1, _TILE_NUMBERS // (2 * padded_half)))

    def rotate(qkv: torch.Tensor, angles: torch.Tensor, slots: torch.Tensor, kv: KVCache) -> None:
        assert kv.has_token_layout and qkv.is_contiguous(), "the cache lies by token, qkv token after token"
        if qkv.shape[0] == 0:
            return
        _rotate_and_store[(qkv.shape[0], triton.cdiv(num_all, tile_heads))](
            qkv,
            angles,
            slots,
            kv.keys,
            kv.values,
            kv.key_scale,
            kv.value_scale,
            qkv if norms is None else norms.query_weight,
            qkv if norms is None else norms.key_weight,
            0.0 if norms is None else norms.eps,
            NUM_HEADS=heads.num_heads,
            NUM_KV_HEADS=heads.num_kv_heads,
            HALF=half,
            BLOCK_SIZE=kv.block_size,
            HAS_NORMS=norms is not None,
            IS_FP8=kv.keys.dtype == FP8,
            TILE_HEADS=tile_heads,
            PADDED_HALF=padded_half,
            num_warps=4,
        )

    return rotate
