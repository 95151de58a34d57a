"""Embedding and output head in eight bits: plain in the checkpoint, rounded while they are loaded.

Knows nothing about ranks or tying: a tied head multiplies with the embedding's own table. Ops are kernels/int8.py's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from threefold.kernels.int8 import Int8Table, int8_lookup, int8_product, keeps_int8, quantise_rows
from threefold.kernels.linear import Product
from threefold.layers.quant import StoredTensor, Table

_SCALE_BYTES = 4


class EightBitTable:
    """Rows of int8 with a scale each.

    Args:
        rows: this rank's.
        dtype: of rows that are looked up, and of hidden states.
    """

    def __init__(self, rows: Int8Table, dtype: torch.dtype) -> None:
        self._table = rows
        self._dtype = dtype
        self._lookup = int8_lookup(rows, dtype)

    def rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[num_tokens] int64 -> [num_tokens, hidden_size]."""
        return self._lookup(token_ids)

    def product(self) -> Product:
        """Hidden states to logits; on a card from the one copy."""
        return int8_product(self._table, self._dtype)


class Int8WhileLoading:
    """A plain table whose rows get a scale each once it has come; the plain one is then gone."""

    stored: Mapping[str, StoredTensor] = {"weight": StoredTensor(None, out_dim=0, in_dim=1)}

    def table(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Table:
        """The rounded one."""
        return EightBitTable(quantise_rows(tensors["weight"]), dtype)

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        """A byte a number and a scale a row; where products do not read those, as much as a plain one at most."""
        if not keeps_int8(dtype, device):
            return outputs * inputs * dtype.itemsize
        return outputs * (inputs + _SCALE_BYTES)
