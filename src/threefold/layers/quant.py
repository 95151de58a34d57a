"""How a layer's weights are stored when they are quantised: the protocol that every scheme answers.

A scheme is one file beside this one (fp8.py, …), for products or for the tables at a model's ends. It names the tensors
that a checkpoint stores for each part of a layer, and makes the product or table from them once all have come. Knows
nothing about checkpoints or ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch

from threefold.kernels.linear import Product, product


class StoredTensor(NamedTuple):
    """How one stored tensor of a part lies in the checkpoint, and so in the layer."""

    dtype: torch.dtype | None
    """What it is kept in; None = the model's own type."""
    out_dim: int | None
    """Dimension along the outputs; None = it has none, and the parts' tensors are stacked: [num_parts, …]."""
    in_dim: int | None
    """Dimension along the inputs; None = it has none."""
    outputs_each: int = 1
    """Outputs for one element along out_dim: 8 of a packed int32, 128 of a block's scale; a last block may be short."""
    inputs_each: int = 1
    """Inputs for one element along in_dim."""
    is_one_a_part: bool = False
    """The checkpoint has one number a part; the layer keeps it once for each output (out_dim 0, in_dim None)."""
    dummy: float | None = None
    """In dummy weights: None = random numbers of variance one (floats) or random bits (integers); a number = that
    everywhere, floats times inputs ** -0.5."""

    def shape(self, outputs: int, inputs: int) -> tuple[int, ...]:
        """Of one part's tensor in the checkpoint; dimensions of one may be left out or added there."""
        if self.is_one_a_part:
            return (1,)
        sizes = {self.out_dim: self.num_outputs(outputs), self.in_dim: _rounded_up(inputs, self.inputs_each)}
        sizes.pop(None, None)
        return tuple(sizes[dim] for dim in sorted(dim for dim in sizes if dim is not None))

    def allows(self, found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
        """Whether a tensor's shape is the expected one; makers of checkpoints add dimensions of one to scales."""
        is_matrix = len(expected) > 1 and self.outputs_each == self.inputs_each == 1
        if is_matrix:
            return found == expected
        return [size for size in found if size != 1] == [size for size in expected if size != 1]

    def num_outputs(self, outputs: int) -> int:
        """Elements along out_dim for so many outputs."""
        return _rounded_up(outputs, self.outputs_each)


class StoredScheme(Protocol):
    """One way to store a matrix."""

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """The tensors of a part, by the checkpoint's own suffixes: weight, weight_scale, qweight, …"""
        ...

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """What a part takes once it is loaded, for the memory plan."""
        ...


class QuantScheme(StoredScheme, Protocol):
    """One way to store weights and to multiply with them."""

    @property
    def name(self) -> str:
        """As a user writes it: fp8, awq, …"""
        ...

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """The product of a layer, from activations of `dtype` to results of `dtype`.

        Args:
            tensors: each kind of `stored`, all parts fused along the outputs, this rank's share, on the layer's device.
                The product takes them over.
            bias: [outputs] or None.
            is_gated: the first half of the outputs is a gate and half as many numbers come out (kernels/linear.py).
            dtype: of activations.

        Raises:
            OperatorError: this device cannot run the scheme, or the numbers do not fit together.
        """
        ...


class Table(Protocol):
    """One rank's rows of an embedding or of a head."""

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64, places in this rank's rows -> [num_tokens, hidden_size]."""
        ...

    def product(self) -> Product:
        """Hidden states to logits of this rank's rows. A body that orders weights its own way makes its copy here."""
        ...


class TableScheme(StoredScheme, Protocol):
    """One way to store an embedding or a head, whose rows are outputs."""

    def table(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Table:
        """The table, which takes the tensors over.

        Args:
            tensors: each kind of `stored`, this rank's rows.
            dtype: of rows and of hidden states.
        """
        ...


class Plain:
    """Weights in the model's own type: what a layer without a scheme has."""

    name = "none"
    stored: Mapping[str, StoredTensor] = {"weight": StoredTensor(None, out_dim=0, in_dim=1)}

    def product(
        self,
        tensors: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None,
        *,
        is_gated: bool,
        dtype: torch.dtype,  # noqa: ARG002 (the weight's own)
    ) -> Product:
        """kernels/linear.py's."""
        return product(tensors["weight"], bias, is_gated=is_gated)

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:  # noqa: ARG002
        """As many numbers as the matrix has."""
        return outputs * inputs * dtype.itemsize


def _rounded_up(num: int, each: int) -> int:
    return -(-num // each)
