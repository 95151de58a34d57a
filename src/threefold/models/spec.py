"""What a dense decoder looks like, as data: the families differ in these fields and in nothing else."""

from __future__ import annotations

from dataclasses import dataclass
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
    quantization: str | None = None
    """Scheme the checkpoint is quantised by, None = none."""
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
