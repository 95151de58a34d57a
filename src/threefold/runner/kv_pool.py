"""The KV cache's memory: one allocation at start, in blocks.

Knows nothing about who holds which block; cache/ does. A failed allocation becomes an error an operator can act on.
"""

from __future__ import annotations

import torch

from threefold.errors import MemoryPlanError
from threefold.layers.attention import KVCache, allocate_kv
from threefold.models.spec import ModelSpec

GIB = 1024**3


def block_bytes(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return spec.kv_bytes_per_token(dtype.itemsize) * block_size


def allocate_pool(
    spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[KVCache]:
    """One cache a layer.

    Raises:
        MemoryPlanError: the memory is not there after all.
    """
    try:
        return allocate_kv(spec, num_blocks, block_size, dtype, device)
    except (RuntimeError, OSError) as error:  # a card's and the system's
        size = num_blocks * block_bytes(spec, block_size, dtype) / GIB
        raise MemoryPlanError(
            f"the KV cache of {num_blocks} blocks ({size:.1f} GiB) could not be allocated; something else took the "
            "memory: lower --gpu-memory-utilization or set --kv-cache-memory-bytes"
        ) from error
