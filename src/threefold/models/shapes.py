"""Names and shapes of a model's weights, and the check that a checkpoint has just these.

Names are Hugging Face's; every source of weights is brought to them. Knows nothing about files or values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from threefold.errors import ModelLoadError
from threefold.models.spec import ModelSpec

Shape = tuple[int, ...]


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Every weight of the model. The largest, embedding and head, come first: loading peaks while little is loaded."""
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size)}
    if not spec.has_tied_head:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    layer = _layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes.update((f"model.layers.{index}.{name}", shape) for name, shape in layer.items())
    shapes["model.norm.weight"] = (spec.hidden_size,)
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    products = {  # name -> (out, in, has bias)
        "self_attn.q_proj": (q, hidden, spec.has_qkv_bias),
        "self_attn.k_proj": (kv, hidden, spec.has_qkv_bias),
        "self_attn.v_proj": (kv, hidden, spec.has_qkv_bias),
        "self_attn.o_proj": (hidden, q, spec.has_o_bias),
        "mlp.gate_proj": (inner, hidden, spec.has_mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.has_mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.has_mlp_bias),
    }
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for name, (num_out, num_in, has_bias) in products.items():
        shapes[f"{name}.weight"] = (num_out, num_in)
        if has_bias:
            shapes[f"{name}.bias"] = (num_out,)
    if spec.has_qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (spec.head_dim,)
    return shapes


def check_shapes(spec: ModelSpec, found: Mapping[str, Shape], source: str) -> None:
    """Refuse a checkpoint whose weights are not exactly the model's.

    Raises:
        ModelLoadError: tensors are missing, left over, or of another shape.
    """
    expected = expected_shapes(spec)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelLoadError(f"{source}: {_some(missing)} missing; the file set is incomplete or of another model")
    left_over = [name for name in found if name not in expected and not _is_redundant(name, spec)]
    if left_over:
        raise ModelLoadError(f"{source}: {_some(left_over)} have no place in {spec.architecture} as configured")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise ModelLoadError(
                f"{source}: {name} has shape {list(found[name])}, the configuration asks for {list(shape)}"
            )


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """True for what older exports store although it follows from the rest."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and spec.has_tied_head)


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:3])
    return f"{len(names)} tensors ({shown}{', …' if len(names) > 3 else ''})"
