"""The most likely token of each row of logits, left on the device.

Contract: the lowest id among the largest logits and that logit; NaN counts as the largest, so that a row with one shows
it. Nothing waits for the device: it may stand in a captured graph.
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
