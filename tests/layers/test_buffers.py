"""Memory for a moment is zeroed, of the right shape, and can be written."""

from __future__ import annotations

import pytest
import torch

from threefold.layers.buffers import fresh_tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_fresh_tensor(dtype: torch.dtype) -> None:
    tensor = fresh_tensor((3, 1000), dtype)

    assert ((3, 1000), dtype) == (tuple(tensor.shape), tensor.dtype)
    assert not tensor.any()
    tensor.fill_(2)
    assert bool((tensor == 2).all())
