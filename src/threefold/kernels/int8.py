"""Tables of int8 rows, each with one scale: looked up, and multiplied with.

Contract: row i is values[i] · scales[i], rounded once to the type that is asked for; the product is x · tableᵀ with x
as it is. Embedding and output head of quantised models are kept so, tied ones in the one copy. Int8 and not e4m3: a
row's numbers differ little in size, so even steps are two to three times as exact as numbers with an exponent each, and
what answers lose is a tenth (docs/LOG.md). Any card can read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from threefold.kernels.bodies import is_triton
from threefold.kernels.linear import Product, product

MAX_INT8 = 127
_ROWS_AT_ONCE = 4096

Lookup = Callable[[torch.Tensor], torch.Tensor]


class Int8Table(NamedTuple):
    """Rows in eight bits a number."""

    values: torch.Tensor
    """[rows, width] int8."""
    scales: torch.Tensor
    """[rows] float32."""

    def dequantised(self, dtype: torch.dtype) -> torch.Tensor:
        """[rows, width] in another type."""
        out = torch.empty(self.values.shape, dtype=dtype, device=self.values.device)
        for start in range(0, len(out), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            out[part] = self.values[part].float().mul_(self.scales[part, None])
        return out


def quantise_rows(plain: torch.Tensor) -> Int8Table:
    """A plain table [rows, width], each row in even steps between ± its largest number."""
    values = torch.empty(plain.shape, dtype=torch.int8, device=plain.device)
    scales = torch.empty(len(plain), dtype=torch.float32, device=plain.device)
    for start in range(0, len(plain), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        wide = plain[part].float()
        scales[part] = wide.abs().amax(dim=1) / MAX_INT8
        steps = torch.where(scales[part] == 0, 1.0, scales[part])
        values[part] = torch.round(wide / steps[:, None])
    return Int8Table(values, scales)


def lookup_reference(table: Int8Table, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows by their places in torch: [n] int64 -> [n, width]."""
    return (table.values[ids].float() * table.scales[ids, None]).to(dtype)


def int8_reference(x: torch.Tensor, table: Int8Table) -> torch.Tensor:
    """The product in torch, in float32: [n, width] -> [n, rows]."""
    return (x.float() @ table.dequantised(torch.float32).T).to(x.dtype)


def int8_lookup(table: Int8Table, dtype: torch.dtype) -> Lookup:
    """The fastest body that looks rows up: a function of [n] int64 places to [n, width]."""
    if not is_triton(table.values.device, dtype):
        return lambda ids: lookup_reference(table, ids, dtype)
    from threefold.kernels.triton.int8_lookup import lookup_body

    return lookup_body(table, dtype)


def keeps_int8(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products read int8 rows for activations of this type; else they become it when they are loaded."""
    return is_triton(device, dtype) and dtype != torch.float32


def int8_product(table: Int8Table, dtype: torch.dtype) -> Product:
    """The fastest body that multiplies with all rows: a function of x [n, width] in `dtype` to [n, rows] in it.

    On a CPU, which gains nothing from it, rows become the activations' type again.
    """
    if not keeps_int8(dtype, table.values.device):
        return product(table.dequantised(dtype), None)
    from threefold.kernels.triton.int8 import int8_body

    return int8_body(table)
