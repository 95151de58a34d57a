"""RMS norm (Zhang and Sennrich 2019), with or without adding a residual first.

Contract: y = x / sqrt(mean(x²) + eps) · weight over the last dimension, in float32, rounded once to x's dtype. With a
residual, residual += x in its own dtype, in place, and the norm is of the residual.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from threefold.kernels.bodies import is_native, is_triton

RmsNorm = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """The contract in torch.

    Args:
        x: [..., width].
        residual: as x, updated in place; None = none.
        weight: [width].
        eps: added to the mean of squares.
    """
    if residual is not None:
        x = residual.add_(x)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rms_norm(weight: torch.Tensor, eps: float) -> RmsNorm:
    """The fastest body for this weight: a function of (x [num_tokens, width], residual or None)."""
    if is_native(weight.device, weight.dtype, weight.shape[0]):
        return _native(weight, eps)
    if is_triton(weight.device, weight.dtype):
        from threefold.kernels.triton.norm import rms_norm_body

        return rms_norm_body(weight, eps)
    return lambda x, residual: rms_norm_reference(x, residual, weight, eps)


def _native(weight: torch.Tensor, eps: float) -> RmsNorm:
    from threefold.kernels.native.norm import ROWS_PER_ITEM, norm_body

    run, width = norm_body(weight.element_size()), weight.shape[0]
    epsilon = torch.tensor([eps], dtype=torch.float32)

    def normalise(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        num_rows = x.shape[0]
        source = 0 if residual is None else residual.data_ptr()
        run(
            -(-num_rows // ROWS_PER_ITEM),
            x.data_ptr(),
            source,
            weight.data_ptr(),
            out.data_ptr(),
            num_rows,
            width,
            epsilon.data_ptr(),
        )
        return out

    return normalise
