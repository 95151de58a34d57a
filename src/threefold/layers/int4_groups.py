"""What the schemes of four-bit weights share: groups of inputs, zeros of eight, and the way to the product.

Each kind of checkpoint is one file beside this one; it says how its tensors lie and brings them to outputs first.
"""

from __future__ import annotations

from typing import Protocol

import torch

from threefold.errors import ModelLoadError
from threefold.kernels.int4 import Int4Weight, int4_product
from threefold.kernels.linear import Product
from threefold.layers.quant import StoredTensor

DUMMY_SCALE = 0.2157
"""1 / the deviation of a random value of 0 to 15 from a zero of 8: dummy weights have variance 1 / inputs."""
MIDDLE = 8
"""The zero of symmetric weights."""


class Int4Numbers(Protocol):
    """What a scheme is made from; models.spec.Quantization has it."""

    @property
    def group_size(self) -> int:
        """Inputs a group; 0 = all."""

    @property
    def has_zero_points(self) -> bool:
        """Zeros are stored; else they are 8."""

    @property
    def has_input_order(self) -> bool:
        """Inputs may lie in an order of their own."""


def eight_times(value: int) -> int:
    """The int32 word that holds a value of four bits eight times."""
    word = value * 0x11111111
    return word - (1 << 32) if word >> 31 else word


def by_group(
    group_size: int,
    dtype: torch.dtype | None,
    *,
    is_groups_first: bool,
    outputs_each: int = 1,
    dummy: float = DUMMY_SCALE,
) -> StoredTensor:
    """The form of what there is one of for each output and group; one group an output where group_size is 0."""
    if group_size == 0:
        return StoredTensor(dtype, 0, None, outputs_each=outputs_each, dummy=dummy)
    out_dim, in_dim = (1, 0) if is_groups_first else (0, 1)
    return StoredTensor(dtype, out_dim, in_dim, outputs_each=outputs_each, inputs_each=group_size, dummy=dummy)


def outputs_first(tensor: torch.Tensor, *, is_groups_first: bool) -> torch.Tensor:
    """Such a tensor as [out, groups]."""
    if tensor.ndim == 1:
        return tensor[:, None]
    return tensor.T.contiguous() if is_groups_first else tensor


def grouped_product(
    weight: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    group_size: int,
    bias: torch.Tensor | None,
    *,
    is_gated: bool,
    dtype: torch.dtype,
) -> Product:
    """The product of values [out, in], scales and zeros [out, groups].

    Raises:
        ModelLoadError: groups that do not divide the inputs.
    """
    values, scales, zeros = weight
    num_inputs = values.shape[1]
    group_size = group_size or num_inputs
    if num_inputs % group_size:
        raise ModelLoadError(
            f"groups of {group_size} do not divide {num_inputs} inputs; a checkpoint with a group size that does "
            "(128, 64 or 32) would work"
        )
    return int4_product(Int4Weight(values, scales, zeros, group_size), bias, is_gated=is_gated, dtype=dtype)


def middles(scales: torch.Tensor) -> torch.Tensor:
    """The zeros of symmetric weights."""
    return torch.full(scales.shape, MIDDLE, dtype=torch.uint8, device=scales.device)


def check_order(group_of_input: torch.Tensor, group_size: int, name: str) -> None:
    """Refuse weights whose inputs lie in an order of their own.

    Args:
        group_of_input: [parts, in], this rank's inputs.
        group_size: inputs a group; 0 = all.
        name: what the checkpoint calls such an order.

    Raises:
        ModelLoadError: some input is not in the group of its place.
    """
    places = torch.arange(group_of_input.shape[-1], device=group_of_input.device)
    in_order = places // (group_size or len(places))
    if not bool((group_of_input - group_of_input[..., :1] == in_order).all()):
        raise ModelLoadError(
            f"inputs are stored in an order of their own ({name}), which is not built; use a checkpoint quantised "
            "without it, as most are"
        )
