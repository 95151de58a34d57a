"""Memory for what every step reads, in pages of two megabytes where the system gives them to who asks.

Whoever streams through pages of four kilobytes waits for their addresses: measured on one core, 16 GB/s against 29.
Linux gives large pages for memory that was marked; elsewhere it is memory like any other.
"""

from __future__ import annotations

import contextlib
import mmap

import torch

PAGE_BYTES = 2 << 20
WORTH_BYTES = 4 * PAGE_BYTES
"""From here on a tensor may well have pages of its own."""


def zeros_in_large_pages(num_bytes: int) -> torch.Tensor:
    """So many bytes, uint8, at a page's start; what is never touched takes no memory, but by whole pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(num_bytes, dtype=torch.uint8)
    memory = mmap.mmap(-1, num_bytes + PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    every = torch.frombuffer(memory, dtype=torch.uint8)  # which holds the memory
    start = -every.data_ptr() % PAGE_BYTES
    return every[start : start + num_bytes]


def gathered(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies one behind another in the same pages, in order; a tensor with pages of its own stays where it is.

    Args:
        tensors: contiguous, bytes a multiple of 64 each; the list is emptied on the way, so that no two copies of all
            of them need memory at once.
    """
    num_bytes = sum(tensor.nbytes for tensor in tensors if tensor.nbytes < WORTH_BYTES)
    memory = zeros_in_large_pages(num_bytes)
    copies, start = [], 0
    tensors.reverse()
    while tensors:
        tensor = tensors.pop()
        if tensor.nbytes < WORTH_BYTES:
            copy = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            start += tensor.nbytes
            tensor = copy.copy_(tensor)
        copies.append(tensor)
    return copies
