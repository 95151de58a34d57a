"""Which compiled body may serve a tensor: the one place that knows what the native and Triton bodies need.

Knows nothing about the ops. Everything a body cannot take goes to the op's torch reference.
"""

from __future__ import annotations

import torch

_LANES = 16
_NATIVE_DTYPES = (torch.float32, torch.bfloat16)
_TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_native(device: torch.device, dtype: torch.dtype, *widths: int) -> bool:
    """Whether compiled CPU bodies serve this dtype and rows of these widths (multiples of 16 lanes)."""
    return device.type == "cpu" and dtype in _NATIVE_DTYPES and all(width % _LANES == 0 for width in widths)


def is_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether Triton bodies serve this dtype: on every card, rows of any width."""
    return device.type == "cuda" and dtype in _TRITON_DTYPES
