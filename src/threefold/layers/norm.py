"""RMS norm with its weight, by itself or shared between the products around it."""

from __future__ import annotations

import torch

from threefold.errors import ModelLoadError
from threefold.kernels.fp8 import Activations, RoundedNorm, Rounding, norm_rounded
from threefold.kernels.linear import NormSharing
from threefold.kernels.norm import rms_norm
from threefold.layers.linear import ColumnParallelLinear, Inputs, RowParallelLinear


class RMSNorm:
    """Root-mean-square norm of the last dimension, the residual added on the way."""

    def __init__(self, width: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self.eps = eps
        self.weight = torch.empty(width, dtype=dtype, device=device)
        self.is_loaded = False
        self._normalise = rms_norm(self.weight, eps)
        self._rounded: RoundedNorm | None = None
        self._more_than = 0
        self._before: NormSharing | None = None

    def load(self, tensor: torch.Tensor) -> None:
        """Take the weight, [width].

        Raises:
            ModelLoadError: a wrong shape.
        """
        if tensor.shape != self.weight.shape:
            raise ModelLoadError(f"a norm has shape {list(tensor.shape)}, the model needs {list(self.weight.shape)}")
        self.weight.copy_(tensor)
        self.is_loaded = True

    def hand_on_to(self, rounding: Rounding | None) -> None:
        """How the product after the norm takes its input rounded, for `handed_on`; None = it does not."""
        if rounding is not None:
            self._more_than = rounding.more_than
            self._rounded = norm_rounded(self.weight, self.eps, rounding.inputs)

    def join(self, before: RowParallelLinear, after: ColumnParallelLinear) -> None:
        """Leave the norm of few tokens to the products around it, where both share norms; both are loaded."""
        self._before = before.norm_sharing if after.norm_sharing is not None else None

    def of_sum(self, before: RowParallelLinear, x: Inputs, residual: torch.Tensor) -> Inputs:
        """Norm of residual + before(x), which is the new residual, in place, as the product after the norm takes it."""
        if self._before is not None and isinstance(x, torch.Tensor) and len(x) <= self._before.max_tokens:
            return self._before.added_to(residual, x, self.weight, self.eps)
        return self.handed_on(before(x), residual)

    def handed_on(self, x: torch.Tensor, residual: torch.Tensor | None) -> Activations:
        """As a call, and rounded where the product after the norm takes so many tokens rounded."""
        if self._rounded is None or x.shape[0] <= self._more_than:
            return self._normalise(x, residual)
        return self._rounded(x, residual)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Norm of x, or of residual + x, which then is the new residual, in place; [num_tokens, width]."""
        return self._normalise(x, residual)
