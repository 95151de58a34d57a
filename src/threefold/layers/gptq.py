"""GPTQ checkpoints of four bits (Frantar et al., arXiv 2210.17323), as AutoGPTQ and GPTQModel store them.

    qweight  [in / 8, out]      int32   eight inputs a word
    qzeros   [groups, out / 8]  int32   eight outputs a word; the first form of the files has each zero less one
    scales   [groups, out]
    g_idx    [in]               int32   the group of each input; read where desc_act may have mixed them

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
    check_order,
    eight_times,
    grouped_product,
    outputs_first,
)
from threefold.layers.nibbles import PER_WORD, unpack
from threefold.layers.quant import QuantScheme, StoredTensor

_LARGEST = 15


def gptq_scheme(numbers: Int4Numbers) -> QuantScheme:
    """The scheme of a GPTQ checkpoint of the first form."""
    return Gptq(numbers.group_size, numbers.has_input_order, zero_offset=1)


def gptq_v2_scheme(numbers: Int4Numbers) -> QuantScheme:
    """The scheme of one whose checkpoint_format is gptq_v2."""
    return Gptq(numbers.group_size, numbers.has_input_order, zero_offset=0)


@dataclass(frozen=True, slots=True)
class Gptq:
    """One product as AutoGPTQ stores it."""

    group_size: int
    """Inputs a group; 0 = all."""
    has_input_order: bool
    """g_idx has to be looked at."""
    zero_offset: int
    """What was taken off the zeros before they were packed."""

    @property
    def name(self) -> str:
        """As a user writes it."""
        return "gptq"

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Values, zeros, scales, and groups of inputs where they may be mixed."""
        dummy_zeros = eight_times(MIDDLE - self.zero_offset)
        tensors = {
            "qweight": StoredTensor(torch.int32, out_dim=1, in_dim=0, inputs_each=PER_WORD),
            "qzeros": by_group(
                self.group_size, torch.int32, is_groups_first=True, outputs_each=PER_WORD, dummy=dummy_zeros
            ),
            "scales": by_group(self.group_size, None, is_groups_first=True),
        }
        return tensors | {"g_idx": StoredTensor(torch.int32, None, 0)} if self.has_input_order else tensors

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        """kernels/int4.py's."""
        if self.has_input_order:
            check_order(tensors["g_idx"], self.group_size, "desc_act")
        values = unpack(tensors["qweight"], 0).T.contiguous()
        scales = outputs_first(tensors["scales"], is_groups_first=True)
        # A zero of 0 wraps around to 15 where one was taken off.
        zeros = outputs_first(unpack(tensors["qzeros"], -1) + self.zero_offset & _LARGEST, is_groups_first=True)
        return grouped_product((values, scales, zeros), self.group_size, bias, is_gated=is_gated, dtype=dtype)

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """As kernels/int4.py keeps them."""
        return kept_bytes(outputs, inputs, self.group_size or inputs, dtype, device)
