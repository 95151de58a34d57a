"""AWQ checkpoints, version gemm (Lin et al., arXiv 2306.00978): weights of four bits by groups of inputs.

    qweight  [in, out / 8]      int32   eight outputs a word, in AWQ's order
    qzeros   [groups, out / 8]  int32   the same of the zeros
    scales   [groups, out]

Knows nothing about checkpoints' words; the product is kernels/int4.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from threefold.kernels.int4 import kept_bytes
from threefold.kernels.linear import Product
from threefold.layers.int4_groups import (
    MIDDLE,
    Int4Numbers,
    by_group,
    eight_times,
    grouped_product,
    middles,
    outputs_first,
)
from threefold.layers.nibbles import AWQ_ORDER, PER_WORD, unpack
from threefold.layers.quant import QuantScheme, StoredTensor


def awq_scheme(numbers: Int4Numbers) -> QuantScheme:
    """The scheme of an AWQ checkpoint."""
    return Awq(numbers.group_size, numbers.has_zero_points)


@dataclass(frozen=True, slots=True)
class Awq:
    """One product as AutoAWQ stores it."""

    group_size: int
    """Inputs a group; 0 = all."""
    has_zero_points: bool = True

    @property
    def name(self) -> str:
        """As a user writes it."""
        return "awq"

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Values and scales, and zeros where there are any."""
        zeros = by_group(
            self.group_size, torch.int32, is_groups_first=True, outputs_each=PER_WORD, dummy=eight_times(MIDDLE)
        )
        tensors = {
            "qweight": StoredTensor(torch.int32, out_dim=1, in_dim=0, outputs_each=PER_WORD),
            "scales": by_group(self.group_size, None, is_groups_first=True),
        }
        return tensors | {"qzeros": zeros} if self.has_zero_points else tensors

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """kernels/int4.py's."""
        values = unpack(tensors["qweight"], -1, AWQ_ORDER).T.contiguous()
        scales = outputs_first(tensors["scales"], is_groups_first=True)
        zeros = middles(scales)
        if self.has_zero_points:
            zeros = outputs_first(unpack(tensors["qzeros"], -1, AWQ_ORDER), is_groups_first=True)
        return grouped_product((values, scales, zeros), self.group_size, bias, is_gated=is_gated, dtype=dtype)

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """As kernels/int4.py keeps them."""
        return kept_bytes(outputs, inputs, self.group_size or inputs, dtype, device)
