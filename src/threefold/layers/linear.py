"""Linear layers, tensor parallel from the start, loaded one tensor at a time.

    column parallel   every rank has some of the outputs; several products of one input are fused   (q, k, v · gate, up)
    row parallel      every rank has some of the inputs; the ranks' results are summed              (o · down)

Knows nothing about files. A layer's stored tensors (one weight, or those of its quantisation scheme) exist only until
the last of them has arrived; then its product takes them over.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from threefold.errors import ModelLoadError
from threefold.kernels.fp8 import Activations, Rounding, RoundingProduct
from threefold.kernels.linear import NormSharing, Product, Unnormed, is_packed
from threefold.kernels.packed import PackedProduct
from threefold.layers.buffers import fresh_tensor
from threefold.layers.fused import FusedTensor
from threefold.layers.quant import Plain, QuantScheme, StoredTensor
from threefold.parallel import Group, shard

Inputs = Activations | Unnormed
"""What layers take: [num_tokens, width] in the model's type, or as the product asks for it."""

_BIAS = StoredTensor(None, out_dim=0, in_dim=None)


class Linear:
    """A product, made up of named parts of its outputs; the base of both kinds."""

    _is_by_outputs: bool
    """Every rank has some of the outputs; else some of the inputs."""

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
        scheme: QuantScheme | None = None,
    ) -> None:
        self._group = group
        self._is_gated = is_gated
        self._dtype = dtype
        self._device = device
        self._scheme = Plain() if scheme is None else scheme
        self._has_short_lived = device.type == "cpu" and (scheme is not None or is_packed(dtype, device))
        forms = {**self._scheme.stored, "bias": _BIAS} if has_bias else self._scheme.stored
        self._fused = {
            kind: FusedTensor(kind, form, parts, in_features, group, is_by_outputs=self._is_by_outputs)
            for kind, form in forms.items()
        }
        self._missing = {(name, kind) for name in parts for kind in forms}
        self._product: Product | None = None
        self._rounding_product: RoundingProduct | None = None
        self.norm_sharing: NormSharing | None = None
        """The product, where it shares norms with its neighbours; known once the layer is loaded."""

    @property
    def missing(self) -> list[str]:
        """Names of the tensors that have not arrived, like `q_proj.weight`."""
        return sorted(f"{name}.{kind}" for name, kind in self._missing)

    @property
    def rounding(self) -> Rounding | None:
        """How the layer takes its input rounded, once it is loaded; None = it does not."""
        return None if self._rounding_product is None else self._rounding_product.rounding

    @property
    def packed(self) -> PackedProduct | None:
        """The product, where its weight stays packed on a CPU; known once the layer is loaded."""
        return self._product if isinstance(self._product, PackedProduct) else None

    def load(self, part: str, kind: str, tensor: torch.Tensor) -> None:
        """Take the whole model's tensor; this rank keeps its share.

        Args:
            part: which product, like `q_proj`.
            kind: `weight` [outputs, inputs], `bias` [outputs], or a kind that the layer's scheme stores.
            tensor: a plain weight or bias may be of any floating dtype.

        Raises:
            ModelLoadError: a wrong shape, or a tensor that this layer does not wait for.
        """
        if (part, kind) not in self._missing:
            raise ModelLoadError(f"tensor {part}.{kind} came twice, or this model has no such tensor")
        fused = self._fused[kind]
        fused.keep(part, tensor, self._allocate, self._dtype)
        if kind == "bias" and not self._is_by_outputs and self._group.rank > 0 and fused.tensor is not None:
            fused.tensor.zero_()  # the sum over the ranks has it once
        self._missing.discard((part, kind))
        if not self._missing:
            self._make_product()

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self._has_short_lived and len(shape) > 1:
            return fresh_tensor(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self._device)

    def _make_product(self) -> None:
        tensors = {kind: fused.tensor for kind, fused in self._fused.items() if fused.tensor is not None}
        self._fused.clear()
        bias = tensors.pop("bias", None)
        product = self._scheme.product(tensors, bias, is_gated=self._is_gated, dtype=self._dtype)
        self._product = product
        if isinstance(product, RoundingProduct):
            self._rounding_product = product
        if isinstance(product, NormSharing) and self._group.size == 1:
            self.norm_sharing = product

    def _multiply(self, x: Inputs) -> torch.Tensor:
        if isinstance(x, Unnormed):
            assert self.norm_sharing is not None, "norms are left to products that share them"
            return self.norm_sharing(x)
        if self._rounding_product is not None:
            return self._rounding_product(x)
        assert self._product is not None, "the layer was called before its weights were loaded"
        assert isinstance(x, torch.Tensor), "activations come rounded to products that take them so"
        return self._product(x)


class ColumnParallelLinear(Linear):
    """Products of one input, fused; every rank has an even share of each product's outputs.

    Gated, its two parts are a gate and what the gate is multiplied with.
    """

    _is_by_outputs = True

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
        scheme: QuantScheme | None = None,
    ) -> None:
        own = {name: shard(num, group, f"{name} outputs") for name, num in parts.items()}
        super().__init__(
            own,
            in_features,
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            group=group,
            is_gated=is_gated,
            scheme=scheme,
        )

    def __call__(self, x: Inputs) -> torch.Tensor:
        """[num_tokens, in_features] -> [num_tokens, this rank's outputs], parts one behind another, or gated."""
        return self._multiply(x)

    def hand_on_to(self, following: Linear) -> None:
        """Let `handed_on` round a gate's results where the layer after it takes them so; both are loaded."""
        rounding = following.rounding
        if rounding is not None and self._rounding_product is not None:
            self._rounding_product.round_result(rounding)

    def handed_on(self, x: Inputs) -> Inputs:
        """The same, as the layer after it takes it."""
        if self._rounding_product is None or isinstance(x, Unnormed):
            return self._multiply(x)
        return self._rounding_product.handed_on(x)


class RowParallelLinear(Linear):
    """One product whose inputs are divided among the ranks."""

    _is_by_outputs = False

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
        scheme: QuantScheme | None = None,
    ) -> None:
        own = shard(in_features, group, f"{name} inputs")
        super().__init__(
            {name: out_features}, own, has_bias=has_bias, dtype=dtype, device=device, group=group, scheme=scheme
        )

    def __call__(self, x: Inputs) -> torch.Tensor:
        """[num_tokens, this rank's in_features] -> [num_tokens, out_features], the same on every rank."""
        return self._group.all_reduce(self._multiply(x))
