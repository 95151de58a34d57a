"""Random tensors of quantised products, for dummy weights of a checkpoint that says it is quantised.

Knows nothing about schemes: a stored tensor's form says what it is filled with.
"""

from __future__ import annotations

import math

import torch

from threefold.models.shapes import Expected

_BOUND = math.sqrt(3)


def dummy_quantised(expected: Expected, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """One tensor, on the generator's device.

    Args:
        expected: with a form.
        dtype: the model's.
        generator: seeded for this tensor.
    """
    assert expected.form is not None, "plain tensors are made elsewhere"
    device, kept, constant = generator.device, expected.dtype(dtype), expected.form.dummy
    if constant is not None:
        value = constant * expected.num_inputs**-0.5 if kept.is_floating_point else constant
        return torch.full(expected.shape, value, dtype=kept, device=device)
    if kept.is_floating_point:
        wide = torch.empty(expected.shape, device=device).uniform_(-_BOUND, _BOUND, generator=generator)
        return wide.to(kept)
    num_bytes = math.prod(expected.shape) * kept.itemsize
    return (
        torch.randint(256, (num_bytes,), dtype=torch.uint8, device=device, generator=generator)
        .view(kept)
        .view(expected.shape)
    )
