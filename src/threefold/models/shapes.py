"""Names, shapes and forms of a model's weights, and the check that a checkpoint has just these.

Names are Hugging Face's; every source of weights is brought to them. Knows nothing about files or values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch

from threefold.errors import ModelLoadError
from threefold.layers.quant import StoredScheme, StoredTensor
from threefold.models.quantization import HEAD, MODULES, layer_schemes, table_scheme
from threefold.models.spec import ModelSpec

Shape = tuple[int, ...]
KV_SCALE_NAME = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|[kv]_proj\.)?(?P<scale>[kv])_scale|(?P<output>[kv])_proj\.output_scale)"
)
"""Scales of an FP8 KV cache, by the names that the tools write; models/kv_scales.py reads them."""


class Expected(NamedTuple):
    """One tensor of the checkpoint."""

    shape: Shape
    form: StoredTensor | None = None
    """How a quantised product's tensor is kept; None = plain, in the model's type."""
    num_inputs: int = 0
    """Of its product."""

    @property
    def is_plain(self) -> bool:
        """In the model's type, as it would be without quantisation."""
        return self.form is None or (self.form.dtype is None and self.form.dummy is None)

    def dtype(self, model_dtype: torch.dtype) -> torch.dtype:
        """What it is kept in."""
        return (self.form.dtype if self.form is not None else None) or model_dtype


def expected_tensors(spec: ModelSpec) -> dict[str, Expected]:
    """Every tensor of the model. The largest, embedding and head, come first: loading peaks while little is loaded.

    Raises:
        ModelLoadError: the model's quantisation does not fit its products.
    """
    tensors: dict[str, Expected] = {}
    for name in tables(spec):
        tensors.update(_product_tensors(name, table_scheme(spec, name), spec.vocab_size, spec.hidden_size))
    for index in range(spec.num_layers):
        tensors.update((f"model.layers.{index}.{name}", one) for name, one in _layer_tensors(spec, index).items())
    tensors["model.norm.weight"] = Expected((spec.hidden_size,))
    return tensors


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The shape of every tensor of the model."""
    return {name: one.shape for name, one in expected_tensors(spec).items()}


def products(spec: ModelSpec) -> dict[str, tuple[int, int, bool]]:
    """A layer's products by their short names -> (outputs, inputs, has a bias)."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "q_proj": (q, hidden, spec.has_qkv_bias),
        "k_proj": (kv, hidden, spec.has_qkv_bias),
        "v_proj": (kv, hidden, spec.has_qkv_bias),
        "o_proj": (hidden, q, spec.has_o_bias),
        "gate_proj": (inner, hidden, spec.has_mlp_bias),
        "up_proj": (inner, hidden, spec.has_mlp_bias),
        "down_proj": (hidden, inner, spec.has_mlp_bias),
    }


def _layer_tensors(spec: ModelSpec, index: int) -> dict[str, Expected]:
    norm, head_norm = Expected((spec.hidden_size,)), Expected((spec.head_dim,))
    tensors = {"input_layernorm.weight": norm, "post_attention_layernorm.weight": norm}
    schemes = layer_schemes(spec, index)
    for name, (num_out, num_in, has_bias) in products(spec).items():
        module = MODULES[name]
        tensors.update(_product_tensors(module, schemes[name], num_out, num_in))
        if has_bias:
            tensors[f"{module}.bias"] = Expected((num_out,))
    if spec.has_qk_norm:
        tensors["self_attn.q_norm.weight"] = tensors["self_attn.k_norm.weight"] = head_norm
    return tensors


def tables(spec: ModelSpec) -> list[str]:
    """The embedding, and the head where it is another; each [vocab_size, hidden_size]."""
    return ["model.embed_tokens", *([] if spec.has_tied_head else [HEAD])]


def _product_tensors(module: str, scheme: StoredScheme | None, num_out: int, num_in: int) -> dict[str, Expected]:
    if scheme is None:
        return {f"{module}.weight": Expected((num_out, num_in))}
    forms = scheme.stored.items()
    return {f"{module}.{kind}": Expected(form.shape(num_out, num_in), form, num_in) for kind, form in forms}


def kept_bytes(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> int:
    """What the model's weights take on a device once they are loaded, quantised products by their scheme."""
    num_bytes = spec.num_parameters * dtype.itemsize
    if spec.quantization is None:
        return num_bytes
    found: list[tuple[StoredScheme | None, int, int]] = [
        (table_scheme(spec, name), spec.vocab_size, spec.hidden_size) for name in tables(spec)
    ]
    for index in range(spec.num_layers):
        schemes = layer_schemes(spec, index)
        found += [(schemes[name], num_out, num_in) for name, (num_out, num_in, _) in products(spec).items()]
    for scheme, num_out, num_in in found:
        if scheme is not None:
            num_bytes += scheme.kept_bytes(num_out, num_in, dtype, device) - num_out * num_in * dtype.itemsize
    return num_bytes


def check_shapes(spec: ModelSpec, found: Mapping[str, Shape], source: str) -> None:
    """Refuse a checkpoint whose weights are not exactly the model's.

    Raises:
        ModelLoadError: tensors are missing, left over, or of another shape.
    """
    expected = expected_tensors(spec)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelLoadError(f"{source}: {_some(missing)} missing; the file set is incomplete or of another model")
    left_over = [name for name in found if name not in expected and not _is_redundant(name, spec)]
    if left_over:
        raise ModelLoadError(f"{source}: {_some(left_over)} have no place in {spec.architecture} as configured")
    for name, (shape, form, _) in expected.items():
        is_right = tuple(found[name]) == shape if form is None else form.allows(tuple(found[name]), shape)
        if not is_right:
            raise ModelLoadError(
                f"{source}: {name} has shape {list(found[name])}, the configuration asks for {list(shape)}"
            )


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """True for what is no weight, and for what older exports store although it follows from the rest."""
    is_tied = name == "lm_head.weight" and spec.has_tied_head
    follows = ("rotary_emb.inv_freq", *(spec.quantization.redundant if spec.quantization is not None else ()))
    return is_tied or name.endswith(follows) or KV_SCALE_NAME.fullmatch(name) is not None


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:3])
    return f"{len(names)} tensors ({shown}{', …' if len(names) > 3 else ''})"
