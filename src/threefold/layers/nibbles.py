"""Four-bit numbers out of int32 words, as the common checkpoints pack them. Knows nothing about what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch

PER_WORD = 8
IN_ORDER = tuple(range(PER_WORD))
"""The lowest four bits are the first number (GPTQ, compressed-tensors)."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The number that each four bits of a word hold, from the lowest on."""


def unpack(words: torch.Tensor, dim: int, order: Sequence[int] = IN_ORDER) -> torch.Tensor:
    """int32 words, each with eight numbers along `dim`, to uint8 numbers: `dim` becomes eight times as long."""
    words = words.movedim(dim, -1)
    numbers = torch.empty((*words.shape, PER_WORD), dtype=torch.uint8, device=words.device)
    for place, number in enumerate(order):
        numbers[..., number] = (words >> (4 * place)) & 15
    return numbers.flatten(-2).movedim(-1, dim)
