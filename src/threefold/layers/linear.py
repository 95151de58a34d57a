"""Linear layers, tensor parallel from the start, loaded one tensor at a time.

    column parallel   every rank has some of the outputs; several products of one input are fused   (q, k, v · gate, up)
    row parallel      every rank has some of the inputs; the ranks' results are summed              (o · down)

Knows nothing about files. A layer's plain weight exists only until its last part has arrived; then its product takes it
over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from threefold.errors import ModelLoadError
from threefold.kernels.linear import Product, is_packed, product
from threefold.layers.buffers import fresh_tensor
from threefold.parallel import Group, shard


class Linear:
    """A product, made up of named parts of its outputs; the base of both kinds."""

    def __init__(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
        is_gated: bool = False,
    ) -> None:
        self._group = group
        self._is_gated = is_gated
        self._starts: dict[str, int] = {}
        num_outputs = 0
        for name, num in parts.items():
            self._starts[name] = num_outputs
            num_outputs += num
        self._sizes = dict(parts)
        self._shape = (num_outputs, in_features)
        self._dtype = dtype
        self._device = device
        self._missing = {(name, kind) for name in parts for kind in (("weight", "bias") if has_bias else ("weight",))}
        self._bias = torch.empty(num_outputs, dtype=dtype, device=device) if has_bias else None
        self._weight: torch.Tensor | None = None
        self._product: Product | None = None

    @property
    def missing(self) -> list[str]:
        """Names of the tensors that have not arrived, like `q_proj.weight`."""
        return sorted(f"{name}.{kind}" for name, kind in self._missing)

    def load(self, part: str, kind: str, tensor: torch.Tensor) -> None:
        """Take the whole model's tensor; this rank keeps its share.

        Args:
            part: which product, like `q_proj`.
            kind: `weight` [outputs, inputs] or `bias` [outputs].
            tensor: of any floating dtype.

        Raises:
            ModelLoadError: a wrong shape, or a tensor that this layer does not wait for.
        """
        if (part, kind) not in self._missing:
            raise ModelLoadError(f"tensor {part}.{kind} came twice, or this model has no such tensor")
        self._keep_share(part, kind, tensor)
        self._missing.discard((part, kind))
        if not self._missing:
            self._product = product(self._target("weight"), self._bias, is_gated=self._is_gated)
            self._weight = None

    def _keep_share(self, part: str, kind: str, tensor: torch.Tensor) -> None:
        own = self._target(kind).narrow(0, self._starts[part], self._sizes[part])
        divided = self._divided_dim(kind)
        full_shape = [size * self._group.size if dim == divided else size for dim, size in enumerate(own.shape)]
        if list(tensor.shape) != full_shape:
            raise ModelLoadError(f"{part}.{kind} has shape {list(tensor.shape)}, the model needs {full_shape}")
        if divided is not None:
            size = own.shape[divided]
            own.copy_(tensor.narrow(divided, self._group.rank * size, size))
        elif self._group.rank == 0:
            own.copy_(tensor)
        else:  # the sum over the ranks has it once
            own.zero_()

    def _divided_dim(self, kind: str) -> int | None:
        """The dimension of which every rank has a share; None = rank 0 has it whole."""
        raise NotImplementedError

    def _target(self, kind: str) -> torch.Tensor:
        if kind == "bias":
            assert self._bias is not None, "the layer has a bias part without a bias"
            return self._bias
        if self._weight is None:
            is_short_lived = is_packed(self._dtype, self._device)
            new = fresh_tensor if is_short_lived else partial(torch.empty, device=self._device)
            self._weight = new(self._shape, dtype=self._dtype)
        return self._weight

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        assert self._product is not None, "the layer was called before its weights were loaded"
        return self._product(x)


class ColumnParallelLinear(Linear):
    """Products of one input, fused; every rank has an even share of each product's outputs.

    Gated, its two parts are a gate and what the gate is multiplied with.
    """

    def __init__(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
        is_gated: bool = False,
    ) -> None:
        own = {name: shard(num, group, f"{name} outputs") for name, num in parts.items()}
        super().__init__(
            own, in_features, has_bias=has_bias, dtype=dtype, device=device, group=group, is_gated=is_gated
        )

    def _divided_dim(self, kind: str) -> int | None:  # noqa: ARG002 (outputs come first in both)
        return 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, this rank's outputs], parts one behind another, or gated."""
        return self._multiply(x)


class RowParallelLinear(Linear):
    """One product whose inputs are divided among the ranks."""

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
    ) -> None:
        own = shard(in_features, group, f"{name} inputs")
        super().__init__({name: out_features}, own, has_bias=has_bias, dtype=dtype, device=device, group=group)

    def _divided_dim(self, kind: str) -> int | None:
        return 1 if kind == "weight" else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, this rank's in_features] -> [num_tokens, out_features], the same on every rank."""
        return self._group.all_reduce(self._multiply(x))
