"""The most likely token of each row of logits, left on the device.

Contract: the lowest id among the largest logits and that logit; NaN counts as the largest, so that a row with one shows
it. `note_most_likely` also notes each token where the next step finds it and packs both for the way back. Nothing waits
for the device: it may stand in a captured graph.
"""

from __future__ import annotations

import torch

from threefold.kernels.bodies import is_triton


def most_likely_reference(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract in torch: [num_rows, vocab] to ([num_rows] int64, [num_rows] float32)."""
    values = logits.amax(-1, keepdim=True)  # NaN where any is
    is_best = (logits == values) | logits.isnan()
    return is_best.int().argmax(-1), values.squeeze(-1).float()


def most_likely_on_device(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their logits by the fastest body: [num_rows, vocab] to ([num_rows] int64, [num_rows] float32)."""
    if is_triton(logits.device, logits.dtype):
        from threefold.kernels.triton.argmax import most_likely_body

        return most_likely_body(logits)
    return most_likely_reference(logits)


def note_most_likely(
    logits: torch.Tensor, places: torch.Tensor, noted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, with each row's token noted.

    Args:
        logits: [num_rows, vocab].
        places: [num_rows] int64, where in `noted`; one place may be meant for what nobody needs, and come again.
        noted: int64.

    Returns:
        Tokens and their logits as above, and [2, num_rows] int32: both of them bit by bit.
    """
    if is_triton(logits.device, logits.dtype):
        from threefold.kernels.triton.argmax import note_most_likely_body

        return note_most_likely_body(logits, places, noted)
    return note_most_likely_reference(logits, places, noted)


def note_most_likely_reference(
    logits: torch.Tensor, places: torch.Tensor, noted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The contract in torch."""
    tokens, values = most_likely_reference(logits)
    noted.index_copy_(0, places, tokens)
    return tokens, values, torch.stack((tokens.int(), values.view(torch.int32)))
