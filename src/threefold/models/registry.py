"""config.json to ModelSpec: the families that are built, and in what they differ.

Knows nothing about weights or layers. A new family of the same shape is one line in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from threefold.errors import ModelLoadError
from threefold.models.fields import Fields
from threefold.models.quantization import read_quantization
from threefold.models.rope import longest_context, rope_from_config
from threefold.models.spec import ModelSpec

_DTYPES = ("bfloat16", "float16", "float32")
_MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Family:
    """What a family's config.json leaves unsaid."""

    window: Literal["none", "all", "upper"]
    """Sliding window: never; in all layers; in the layers that layer_types or max_window_layers name."""
    qkv_bias: bool | None = None
    """Biases on q, k and v alone; None = attention_bias decides, and for the output product too."""
    has_qk_norm: bool = False
    """RMS norm on query and key heads."""
    head_dim: int | None = None
    """Width of a head where the file names none; None = hidden_size / num_attention_heads."""
    num_kv_heads: int | None = None
    """Key and value heads where the file names none; None = as many as query heads."""
    max_positions: int = 32_768
    """Context where the file names none, tokens."""


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(window="none", max_positions=2048),
    "MistralForCausalLM": Family(window="all", qkv_bias=False, num_kv_heads=8, max_positions=131_072),
    "Qwen2ForCausalLM": Family(window="upper", qkv_bias=True, num_kv_heads=32),
    "Qwen3ForCausalLM": Family(window="upper", has_qk_norm=True, head_dim=128, num_kv_heads=32),
}


def spec_from_config(config: Mapping[str, Any], source: str = "config.json") -> ModelSpec:
    """The model that a config.json describes.

    Args:
        config: the file's object.
        source: where it came from, for messages.

    Raises:
        ModelLoadError: an unknown architecture, an unsupported quantisation, a field that is missing or cannot hold.
    """
    fields = Fields(config, source)
    name, family = _family(fields)
    if fields.text("hidden_act", "silu") not in ("silu", "swish"):
        raise fields.fault("hidden_act", "must be silu")
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers", high=_MOST_LAYERS)
    max_positions = fields.integer("max_position_embeddings", family.max_positions)
    rope = rope_from_config(fields, max_positions)
    window, window_layers = _window(fields, family, num_layers)
    attention_bias = fields.boolean("attention_bias", False)
    spec = ModelSpec(
        architecture=name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", _default_kv_heads(fields, family, num_heads)),
        head_dim=fields.integer("head_dim", family.head_dim or max(hidden_size // num_heads, 1)),
        intermediate_size=fields.integer("intermediate_size"),
        max_positions=longest_context(rope, max_positions),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        has_qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        has_o_bias=attention_bias and family.qkv_bias is None,
        has_mlp_bias=fields.boolean("mlp_bias", False),
        has_qk_norm=family.has_qk_norm,
        has_tied_head=fields.boolean("tie_word_embeddings", False),
        sliding_window=window,
        window_layers=window_layers,
        dtype=_dtype(fields),
        quantization=read_quantization(fields),
        bos_token_id=next(iter(fields.integers("bos_token_id")), None),
        eos_token_ids=fields.integers("eos_token_id"),
    )
    check_spec(spec, source)
    return spec


def check_spec(spec: ModelSpec, source: str) -> None:
    """Refuse numbers that do not fit together.

    Raises:
        ModelLoadError: heads that cannot be grouped, or a head that cannot be rotated.
    """
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(
            f"{source}: {spec.num_heads} query heads cannot share {spec.num_kv_heads} key and value heads evenly"
        )
    if spec.head_dim % 2:
        raise ModelLoadError(f"{source}: head_dim must be even to be rotated, got {spec.head_dim}")


def _family(fields: Fields) -> tuple[str, Family]:
    names = fields.values.get("architectures") or []
    if isinstance(names, list) and names and isinstance(names[0], str):
        if names[0] in FAMILIES:
            return names[0], FAMILIES[names[0]]
        raise ModelLoadError(f"{fields.source}: unknown architecture {names[0]!r}; known: {', '.join(FAMILIES)}")
    raise fields.fault("architectures", f"must be a list with one of {', '.join(FAMILIES)}")


def _default_kv_heads(fields: Fields, family: Family, num_heads: int) -> int:
    """Silence means the family's number, an explicit null as many as query heads."""
    return num_heads if "num_key_value_heads" in fields.values else family.num_kv_heads or num_heads


def _dtype(fields: Fields) -> str:
    name = fields.text("dtype", fields.text("torch_dtype", "bfloat16")).removeprefix("torch.")
    if name not in _DTYPES:
        raise fields.fault("dtype" if fields.has("dtype") else "torch_dtype", f"must be one of {', '.join(_DTYPES)}")
    return name


def _window(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, tuple[int, ...]]:
    """Sliding window in tokens and the layers that have it (empty = all)."""
    if family.window == "none":
        return None, ()
    if family.window == "all":
        # An explicit null means no window; a file that says nothing means the family's 4,096.
        is_null = "sliding_window" in fields.values and not fields.has("sliding_window")
        return (None if is_null else fields.integer("sliding_window", 4096)), ()
    if not fields.boolean("use_sliding_window", False):
        return None, ()
    layers = _upper_layers(fields, num_layers)
    if not layers:
        return None, ()
    return fields.integer("sliding_window", 4096), () if len(layers) == num_layers else layers


def _upper_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return tuple(range(fields.integer("max_window_layers", 28, low=0), num_layers))
    known = ("sliding_attention", "full_attention")
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise fields.fault("layer_types", f"must be a list of {num_layers} of {' or '.join(known)}")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
