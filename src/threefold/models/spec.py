"""What a dense decoder looks like, as data: the families differ in these fields and in nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) and its scalings to longer contexts."""

    theta: float = 10_000.0
    """Base of the rotation's frequencies."""
    scaling: Literal["none", "linear", "llama3", "yarn", "dynamic"] = "none"
    """How frequencies are stretched."""
    factor: float = 1.0
    """Stretch of the context."""
    original_max_positions: int = 0
    """Context that the model was trained on before stretching, tokens."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths longer than original / this are stretched fully."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths shorter than original / this are left alone."""
    beta_fast: float = 32.0
    """yarn: rotations above which a frequency is left alone."""
    beta_slow: float = 1.0
    """yarn: rotations below which a frequency is stretched fully."""
    attention_factor: float | None = None
    """yarn: factor on cos and sin; None = 0.1 ln(factor) + 1."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's products are quantised, as data; models/quantization.py reads it and finds the scheme."""

    kind: str
    """What a user writes: fp8, awq, gptq, …; a key of models/quantization.py's SCHEMES."""
    source: str
    """The checkpoint's own words for it, for messages: compressed-tensors float-quantized, fbgemm_fp8, …"""
    strategy: Literal["tensor", "channel", "block", "group"] = "channel"
    """What weights share a scale: a matrix, an output, a block of block_size, a group of inputs of one output."""
    bits: int = 8
    """Of a weight."""
    group_size: int = 0
    """group: inputs a group."""
    block_size: tuple[int, int] = (0, 0)
    """block: outputs and inputs a block."""
    has_zero_points: bool = False
    """Weights are stored with an offset a group."""
    has_input_order: bool = False
    """The group of each input is stored, because inputs may lie in an order of their own (GPTQ's desc_act)."""
    has_input_scales: bool = False
    """Activations have a fixed scale for each product, stored; else they are scaled as they come, or not at all."""
    input_bound: float | None = None
    """fbgemm: activations are cut at this when they are scaled."""
    scale_name: str = "weight_scale"
    """The stored scales' suffix, where checkpoints of one kind differ in it."""
    is_made_here: bool = False
    """The checkpoint is plain; weights are quantised while they are loaded."""
    has_int8_tables: bool = False
    """Embedding and head, which are plain in the checkpoint, are rounded to eight bits while they are loaded."""
    targets: tuple[str, ...] = ()
    """Names of the modules that are quantised; empty = all products of the layers."""
    ignored: tuple[str, ...] = ()
    """Names of modules left plain: whole, as a dotted piece of a name, or re: and an expression."""
    packings: Mapping[str, str] = field(default_factory=dict)
    """gguf: what each module that stays packed is packed in (layers/gguf.py), by its full name; others are plain."""
    redundant: tuple[str, ...] = ()
    """Ends of the names of tensors that follow from the rest and are not read."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A dense decoder: Llama, Mistral, Qwen2 and Qwen3 as one shape with named differences."""

    architecture: str
    """Name as the checkpoint says it, for messages."""
    vocab_size: int
    """Rows of the embedding; the logits' width."""
    hidden_size: int
    """Width of the residual stream."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    intermediate_size: int
    """Width of the gated MLP."""
    max_positions: int
    """Longest context, tokens."""
    norm_eps: float = 1e-6
    """Epsilon of the RMS norms."""
    rope: RopeSpec = RopeSpec()
    """Rotary embedding."""
    has_qkv_bias: bool = False
    """Qwen2: biases on the q, k and v products."""
    has_o_bias: bool = False
    """A bias on the attention's output product (Llama's attention_bias sets both)."""
    has_mlp_bias: bool = False
    """Biases on the MLP's products (Llama's mlp_bias)."""
    has_qk_norm: bool = False
    """Qwen3: RMS norm on each query and key head before the rotation."""
    has_tied_head: bool = False
    """The output head is the embedding."""
    sliding_window: int | None = None
    """Mistral: tokens that a query may look back on, itself included; None = all."""
    window_layers: tuple[int, ...] = ()
    """Layers with the sliding window; empty = every layer, when a window is set."""
    dtype: str = "bfloat16"
    """What the checkpoint is stored in."""
    quantization: Quantization | None = None
    """How its products are quantised, None = they are not."""
    bos_token_id: int | None = None
    """Beginning of sequence."""
    eos_token_ids: tuple[int, ...] = ()
    """End of sequence."""

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model, a tied head counted once."""
        q = self.num_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        layer = self.hidden_size * (2 * q + 2 * kv + 3 * self.intermediate_size + 2)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.has_tied_head else 2)
        return self.num_layers * layer + embeddings + self.hidden_size
