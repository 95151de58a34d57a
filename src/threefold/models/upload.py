"""Host memory to a card, as fast as the memory can be read: through a few pinned buffers, in turn.

    mapped file ──copy──► pinned buffer ──DMA──► card          while one buffer travels the next is filled

Nothing is held twice on the host, and types change on the card. Knows nothing about names or files.
"""

from __future__ import annotations

import itertools

import torch

BUFFER_BYTES = 32 << 20
NUM_BUFFERS = 3


class Stage:
    """Pinned buffers on their way to one card.

    Args:
        device: the card.
        buffer_bytes: size of each buffer.
    """

    def __init__(self, device: torch.device, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._device = device
        self._buffer_bytes = buffer_bytes
        buffers = [torch.empty(buffer_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(NUM_BUFFERS)]
        self._ring = itertools.cycle([(buffer, torch.Event(device)) for buffer in buffers])

    def upload(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A copy on the card in `dtype`; the host's tensor may go as soon as this returns."""
        landed = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = as_bytes(tensor), as_bytes(landed)
        for start in range(0, len(source), self._buffer_bytes):
            piece = source[start : start + self._buffer_bytes]
            buffer, has_left = next(self._ring)
            has_left.synchronize()
            buffer[: len(piece)].copy_(piece)
            target[start : start + len(piece)].copy_(buffer[: len(piece)], non_blocking=True)
            has_left.record()
        return landed.to(dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's own memory, flat."""
    return tensor.reshape(-1).view(torch.uint8)
