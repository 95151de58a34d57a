"""One dense decoder for the Llama, Mistral, Qwen2 and Qwen3 families, by the differences that ModelSpec names.

Knows nothing about requests or files: a batch of tokens goes in and hidden states come out; weights come one tensor at
a time, by their Hugging Face names, and are not held twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from threefold.errors import ModelLoadError
from threefold.layers.attention import Attention, AttentionStep, KVCache, PagedAttention, StepBounds, own_heads
from threefold.layers.batch import Batch
from threefold.layers.embedding import OutputHead, VocabParallelEmbedding, Vocabulary
from threefold.layers.linear import Inputs
from threefold.layers.mlp import GatedMLP
from threefold.layers.norm import RMSNorm
from threefold.layers.packed_layers import LayerParts, LayersAtOnce, layers_at_once
from threefold.layers.rope import RotaryAngles
from threefold.models.quantization import HEAD, layer_schemes, table_scheme
from threefold.models.spec import ModelSpec
from threefold.parallel import Group, single_group

_EMBEDDING = "model.embed_tokens"
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)")
_PRODUCT_NAME = re.compile(r"(?:self_attn|mlp)\.(\w+_proj)\.(\w+)")
_NORM_NAME = re.compile(r"(?:self_attn\.)?(\w+norm)\.weight")


class DecoderLayer:
    """Norm, attention, norm, MLP, around one residual stream."""

    def __init__(  # noqa: PLR0917 (a layer of a model on a device)
        self,
        spec: ModelSpec,
        index: int,
        paged: PagedAttention,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
    ) -> None:
        schemes = layer_schemes(spec, index)
        self.attention = Attention(
            paged,
            own_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, group),
            spec.hidden_size,
            has_qkv_bias=spec.has_qkv_bias,
            has_o_bias=spec.has_o_bias,
            qk_norm_eps=spec.norm_eps if spec.has_qk_norm else None,
            dtype=dtype,
            device=device,
            group=group,
            qkv_scheme=schemes["q_proj"],
            out_scheme=schemes["o_proj"],
        )
        self.mlp = GatedMLP(
            spec.hidden_size,
            spec.intermediate_size,
            has_bias=spec.has_mlp_bias,
            dtype=dtype,
            device=device,
            group=group,
            gate_up_scheme=schemes["gate_proj"],
            down_scheme=schemes["down_proj"],
        )
        self.input_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype, device)
        self.attention_norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype, device)
        self._norms = {
            "input_layernorm": self.input_norm,
            "post_attention_layernorm": self.attention_norm,
            **self.attention.norms,
        }
        self._products = {
            **dict.fromkeys(("q_proj", "k_proj", "v_proj"), self.attention.qkv),
            "o_proj": self.attention.out,
            **dict.fromkeys(("gate_proj", "up_proj"), self.mlp.gate_up),
            "down_proj": self.mlp.down,
        }

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Take one tensor, by its name within the layer, like `self_attn.q_proj.weight`.

        Raises:
            ModelLoadError: no such tensor here, or a wrong shape.
        """
        product, norm = _PRODUCT_NAME.fullmatch(name), _NORM_NAME.fullmatch(name)
        if product is not None and product[1] in self._products:
            self._products[product[1]].load(product[1], product[2], tensor)
        elif norm is not None and norm[1] in self._norms:
            self._norms[norm[1]].load(tensor)
        else:
            raise ModelLoadError("this architecture has no such tensor")

    def link(self, before: DecoderLayer | None) -> None:
        """Once all is loaded: let each norm and gate hand on what the product after it takes, and share norms with the
        products before them, of which the first is the layer before's.
        """
        if before is not None:
            self.input_norm.join(before.mlp.down, self.attention.qkv)
        self.attention_norm.join(self.attention.out, self.mlp.gate_up)
        self.input_norm.hand_on_to(self.attention.qkv.rounding)
        self.attention_norm.hand_on_to(self.mlp.gate_up.rounding)
        self.mlp.link()

    @property
    def parts(self) -> LayerParts:
        """What it is made of."""
        return LayerParts(self.input_norm, self.attention, self.attention_norm, self.mlp)

    @property
    def missing(self) -> list[str]:
        """Tensors that have not arrived."""
        products = {id(product): product for product in self._products.values()}.values()
        norms = [f"{name}.weight" for name, norm in self._norms.items() if not norm.is_loaded]
        return [name for product in products for name in product.missing] + norms

    def after_attention(self, attended: torch.Tensor, stream: torch.Tensor) -> Inputs:
        """What lies between attention's heads and the last product, on any of a step's tokens.

        Args:
            attended: what `attention.inner` gave, [num_tokens, this rank's heads].
            stream: what the layers before summed up, [num_tokens, hidden_size]; attention is added in place.

        Returns:
            What `mlp.down` takes, whose result the next norm adds to the stream.
        """
        return self.mlp.inner(self.attention_norm.of_sum(self.attention.out, attended, stream))


class Decoder:
    """The model.

    Args:
        spec: its shape.
        dtype: of weights and activations.
        device: where it runs.
        group: ranks that hold it together; None = one.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, group: Group | None = None) -> None:
        group = group or single_group()
        self.spec = spec
        self._paged = self._make_attentions(dtype, device, group)
        self._angles = RotaryAngles(spec.rope, spec.head_dim, spec.max_positions, device)
        vocabulary = Vocabulary(spec.vocab_size, spec.hidden_size, dtype, device, group)
        self._embedding = VocabParallelEmbedding(vocabulary, table_scheme(spec, _EMBEDDING))
        self._layers = [
            DecoderLayer(spec, i, self._paged[self._window(i)], dtype, device, group) for i in range(spec.num_layers)
        ]
        self._norm = RMSNorm(spec.hidden_size, spec.norm_eps, dtype, device)
        self._head = OutputHead(vocabulary, table_scheme(spec, HEAD))
        self._heads, self._group = own_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, group), group
        self._at_once: LayersAtOnce | None = None

    def _make_attentions(
        self, dtype: torch.dtype, device: torch.device, group: Group
    ) -> dict[int | None, PagedAttention]:
        """One attention for each window that occurs: layers with one window share a step's plan."""
        spec = self.spec
        heads = own_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, group)
        windows = {self._window(layer) for layer in range(spec.num_layers)}
        return {window: PagedAttention(heads, spec.head_dim**-0.5, window, dtype, device) for window in windows}

    def _window(self, layer: int) -> int | None:
        is_windowed = not self.spec.window_layers or layer in self.spec.window_layers
        return self.spec.sliding_window if is_windowed else None

    @torch.inference_mode()
    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take the weights, one tensor at a time, in any order; none is kept once its layer has its own form of it.

        Args:
            tensors: (Hugging Face name, whole tensor) pairs, of any floating dtype. `lm_head.weight` is left aside when
                the head is tied.

        Raises:
            ModelLoadError: a tensor is unknown, of a wrong shape, or missing at the end.
        """
        for name, tensor in tensors:
            try:
                self._load_one(name, tensor)
            except ModelLoadError as error:
                raise ModelLoadError(f"{name}: {error}") from error
        if self.spec.has_tied_head and self._embedding.table is not None:
            self._head.tie(self._embedding)
        missing = self._missing()
        if missing:
            raise ModelLoadError(f"the checkpoint lacks {len(missing)} tensors, among them {', '.join(missing[:3])}")
        for before, layer in zip([None, *self._layers], self._layers, strict=False):
            layer.link(before)
        self._at_once = layers_at_once([layer.parts for layer in self._layers], self._heads, self._group.size)

    def _load_one(self, name: str, tensor: torch.Tensor) -> None:
        layer, (stem, _, kind) = _LAYER_NAME.fullmatch(name), name.rpartition(".")
        if layer is not None and int(layer[1]) < len(self._layers):
            self._layers[int(layer[1])].load(layer[2], tensor)
        elif stem == _EMBEDDING:
            self._embedding.load(tensor, kind)
        elif name == "model.norm.weight":
            self._norm.load(tensor)
        elif stem != HEAD:
            raise ModelLoadError("this architecture has no such tensor")
        elif not self.spec.has_tied_head:
            self._head.load(tensor, kind)

    def _missing(self) -> list[str]:
        others = {
            "model.embed_tokens.weight": self._embedding.table is not None,
            "model.norm.weight": self._norm.is_loaded,
            "lm_head.weight": self._head.is_loaded or self.spec.has_tied_head,
        }
        missing = [name for name, is_there in others.items() if not is_there]
        return missing + [f"model.layers.{i}: {name}" for i, layer in enumerate(self._layers) for name in layer.missing]

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: list[KVCache]) -> torch.Tensor:
        """Run a step's tokens.

        Args:
            batch: the step.
            kv: one cache a layer; the tokens' keys and values are written to their slots.

        Returns:
            [num_logits, hidden_size] of the tokens whose logits are wanted, normed, ready for `logits`.
        """
        angles, bounds = self._angles(batch.positions), StepBounds(batch.num_tokens, batch.max_new, batch.max_context)
        rows = batch.row_starts, batch.context_lens, batch.block_tables
        steps = {
            window: AttentionStep(angles, batch.slots, paged.plan(*rows, bounds, kv[0].keys.dtype))
            for window, paged in self._paged.items()
        }
        stream = self._embedding(batch.token_ids)
        wanted = batch.logit_tokens
        if self._at_once is not None and self._at_once.take(kv):
            self._at_once(stream, [steps[self._window(index)] for index in range(len(kv))], kv)
            return self._norm(stream[wanted])
        normed: Inputs = self._layers[0].input_norm.handed_on(stream, None)
        for index, (layer, cache) in enumerate(zip(self._layers, kv, strict=True)):
            attended = layer.attention.inner(normed, steps[self._window(index)], cache)
            if index + 1 == len(self._layers):
                break
            inner = layer.after_attention(attended, stream)
            normed = self._layers[index + 1].input_norm.of_sum(layer.mlp.down, inner, stream)
        return self._last(attended, stream, wanted)

    def _last(self, attended: torch.Tensor, stream: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The last layer behind its attention, whose keys and values all tokens have: for those that are wanted."""
        layer, stream = self._layers[-1], stream[wanted]
        if not len(stream):
            return stream
        return self._norm(layer.mlp.down(layer.after_attention(attended[wanted], stream)), stream)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, hidden_size] -> [n, vocab_size] float32, in `out` where it is given."""
        return self._head(hidden, out)
