"""Norm, rotation and the write into the cache in one pass: the compiled body against the contract."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.kv import allocate
from threefold.kernels.rotary import HeadNorms, Heads, rotate_and_store, rotate_and_store_reference

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(4, 4, 128), Heads(2, 1, 32), Heads(2, 1, 8)])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("block_size", [16, 32, 8])
def test_body_equals_reference(dtype: torch.dtype, heads: Heads, has_norms: bool, block_size: int) -> None:
    torch.manual_seed(0)
    num_tokens = 7
    weights = torch.rand(2, heads.head_dim).to(dtype) + 0.5
    norms = HeadNorms(weights[0], weights[1], 1e-6) if has_norms else None
    angles = torch.randn(num_tokens, heads.head_dim)
    slots = torch.tensor([3, 40, 41, 17, 0, 63, 20])
    ours = torch.randn(num_tokens, heads.width).to(dtype)
    theirs = ours.clone()
    kv = [allocate(64 // block_size, block_size, heads.num_kv_heads, heads.head_dim, dtype, CPU) for _ in range(2)]

    rotate_and_store(heads, norms, dtype, CPU)(ours, angles, slots, kv[0])
    rotate_and_store_reference(theirs, angles, slots, kv[1], heads, norms)

    torch.testing.assert_close(ours, theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    blocks = torch.arange(64 // block_size)
    for mine, reference in zip(kv[0].read(blocks, 64), kv[1].read(blocks, 64), strict=True):
        torch.testing.assert_close(mine, reference, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def test_no_angle_turns_nothing() -> None:
    heads = Heads(2, 1, 32)
    angles = torch.cat([torch.ones(1, 16), torch.zeros(1, 16)], dim=1)
    qkv = torch.randn(1, heads.width)
    before = qkv.clone()

    rotate_and_store(heads, None, torch.float32, CPU)(
        qkv, angles, torch.tensor([0]), allocate(1, 16, 1, 32, torch.float32, CPU)
    )

    torch.testing.assert_close(qkv, before)
