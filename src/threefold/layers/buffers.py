"""Memory for tensors that live for a moment: read here, copied into the model, dropped."""

from __future__ import annotations

import math
import mmap

import torch


def fresh_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose memory goes back to the system when it dies.

    From the common heap, hundreds of short-lived tensors of mixed sizes between long-lived ones leave holes: a small
    model, once loaded, would take a third more than its weights.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=dtype).view(shape)
