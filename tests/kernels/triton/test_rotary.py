"""Norm, rotation and the write into the cache as one Triton body, interpreted, against the contract."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.kv import FP8, KVCache, allocate_by_token
from threefold.kernels.rotary import HeadNorms, Heads, rotate_and_store_reference
from threefold.kernels.triton.rotary import rotate_and_store_body

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
NUM_SLOTS = 64


def caches(heads: Heads, block_size: int, dtype: torch.dtype) -> list[KVCache]:
    num_blocks = NUM_SLOTS // block_size
    return [allocate_by_token(num_blocks, block_size, heads.num_kv_heads, heads.head_dim, dtype, CPU) for _ in "12"]


def contents(kv: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
    return kv.read(torch.arange(NUM_SLOTS // kv.block_size), NUM_SLOTS)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(32, 8, 128), Heads(3, 1, 80), Heads(2, 1, 8)])
@pytest.mark.parametrize("has_norms", [False, True])
def test_body_equals_reference(dtype: torch.dtype, heads: Heads, has_norms: bool) -> None:
    torch.manual_seed(0)
    block_size = 16 if has_norms else 32
    weights = torch.rand(2, heads.head_dim).to(dtype) + 0.5
    norms = HeadNorms(weights[0], weights[1], 1e-6) if has_norms else None
    slots = torch.tensor([3, 40, -1, 17, 0, 63, 20, -1])
    angles = torch.randn(len(slots), heads.head_dim)
    ours = torch.randn(len(slots), heads.width).to(dtype)
    theirs = ours.clone()
    mine, other = caches(heads, block_size, dtype)

    rotate_and_store_body(heads, norms)(ours, angles, slots, mine)
    rotate_and_store_reference(theirs, angles, slots, other, heads, norms)

    torch.testing.assert_close(ours, theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    for got, expected in zip(contents(mine), contents(other), strict=True):
        torch.testing.assert_close(got, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
        unwritten = [slot for slot in range(NUM_SLOTS) if slot not in slots.tolist()]
        assert (got[unwritten] == 0).all()


def test_cache_in_fp8_scales_and_saturates() -> None:
    heads = Heads(3, 1, 64)
    slots = torch.tensor([5, 6, 40])
    # The interpreter rounds FP8 wrongly where a digit is carried; numbers that need no rounding show no difference.
    qkv = torch.randn(3, heads.width).clamp(min=0.1).to(FP8).float()
    qkv[1] *= 10_000
    angles = torch.cat([torch.ones(3, 32), torch.zeros(3, 32)], dim=1)
    mine, other = caches(heads, 16, FP8)
    for kv in (mine, other):
        kv.key_scale.fill_(0.5)
        kv.value_scale.fill_(2.0)

    rotate_and_store_body(heads, None)(qkv.clone(), angles, slots, mine)
    rotate_and_store_reference(qkv.clone(), angles, slots, other, heads, None)

    for got, expected, scale in zip(contents(mine), contents(other), (0.5, 2.0), strict=True):
        assert 448 * scale == got.abs().max()
        assert torch.equal(got, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of the rotation that values do not get
@pytest.mark.parametrize("dtype", [torch.float32, FP8])
def test_values_that_are_not_finite_are_stored_as_zeros(dtype: torch.dtype) -> None:
    heads = Heads(1, 1, 8)
    qkv = torch.ones(1, heads.width)
    qkv[0, 17], qkv[0, 18], qkv[0, 22] = float("nan"), float("inf"), float("-inf")
    kv = caches(heads, 16, dtype)[0]

    rotate_and_store_body(heads, None)(qkv, torch.ones(1, 8), torch.tensor([9]), kv)

    assert [1, 0, 0, 1, 1, 1, 0, 1] == contents(kv)[1][9, 0].tolist()


def test_no_tokens() -> None:
    heads = Heads(1, 1, 8)
    rotate_and_store_body(heads, None)(
        torch.zeros(0, 24), torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64), caches(heads, 16, torch.float32)[0]
    )
