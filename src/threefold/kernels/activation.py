"""The gate of an MLP. Contract: silu(gate) · up with silu(x) = x / (1 + e^-x), in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.kernels.bodies import is_native, is_triton

SiluMul = Callable[[torch.Tensor], torch.Tensor]


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The contract in torch: [num_tokens, 2 * width] -> [num_tokens, width], gate first."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def silu_mul(width: int, dtype: torch.dtype, device: torch.device) -> SiluMul:
    """The fastest body for rows of 2 * width numbers."""
    if is_triton(device, dtype):
        from threefold.kernels.triton.activation import silu_mul_body as triton_body

        return triton_body(width)
    if not is_native(device, dtype, width):
        return silu_mul_reference
    from threefold.kernels.native.activation import ROWS_PER_ITEM, silu_mul_body

    run = silu_mul_body(dtype.itemsize)

    def multiply(gate_up: torch.Tensor) -> torch.Tensor:
        gate_up = gate_up.contiguous()
        num_rows = gate_up.shape[0]
        out = gate_up.new_empty((num_rows, width))
        run(-(-num_rows // ROWS_PER_ITEM), gate_up.data_ptr(), out.data_ptr(), num_rows, width)
        return out

    return multiply
