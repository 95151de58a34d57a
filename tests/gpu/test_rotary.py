"""Norm, rotation and the KV write on a card against the contract, also with padding."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.kv import FP8, allocate
from threefold.kernels.rotary import HeadNorms, Heads, rotate_and_store, rotate_and_store_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(32, 8, 128), Heads(16, 8, 128), Heads(3, 1, 80)])
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("has_fp8_cache", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 300])
def test_body_equals_reference(dtype, heads, has_norms, has_fp8_cache, num_tokens) -> None:
    torch.manual_seed(0)
    num_blocks = 32
    weights = (torch.rand(2, heads.head_dim, device=CARD) + 0.5).to(dtype)
    norms = HeadNorms(weights[0], weights[1], 1e-6) if has_norms else None
    slots = torch.randperm(num_blocks * 16, device=CARD)[:num_tokens]
    slots[num_tokens // 2 + 1 :: 3] = -1
    angles = torch.randn(num_tokens, heads.head_dim, device=CARD)
    ours = torch.randn(num_tokens, heads.width, device=CARD).to(dtype)
    theirs = ours.clone()
    kv_dtype = FP8 if has_fp8_cache else dtype
    mine, other = (allocate(num_blocks, 16, heads.num_kv_heads, heads.head_dim, kv_dtype, CARD) for _ in "12")
    for kv in (mine, other):
        kv.key_scale.fill_(0.5 if has_fp8_cache else 1.0)

    rotate_and_store(heads, norms, dtype, CARD)(ours, angles, slots, mine)
    rotate_and_store_reference(theirs, angles, slots, other, heads, norms)

    torch.testing.assert_close(ours, theirs, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])
    bound = 0.13 if has_fp8_cache else BOUNDS[dtype]  # a number halfway between two of FP8's may go to either
    blocks = torch.arange(num_blocks, device=CARD)
    for got, expected in zip(mine.read(blocks, num_blocks * 16), other.read(blocks, num_blocks * 16), strict=True):
        torch.testing.assert_close(got, expected, rtol=bound, atol=bound / 10 if has_fp8_cache else bound)
        assert torch.equal(got.flatten(1).any(-1), expected.flatten(1).any(-1))
