"""A GGUF file as a model: its metadata to ModelSpec, its tensors to canonical names and types.

The `gguf` library unpacks the blocks; here they are read from the file and unpacked a few rows at a time, straight into
a tensor of the wanted type, so loading takes the weights and a few megabytes. Knows nothing about tokenizers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType as Kind

from threefold.errors import ModelLoadError
from threefold.layers.buffers import fresh_tensor
from threefold.layers.gguf import PACKINGS, common_packing, fits_records, has_packed_products
from threefold.models.fields import Fields
from threefold.models.gguf_blocks import take_apart
from threefold.models.gguf_file import GgufFile, GgufTensor
from threefold.models.quantization import FUSED, MODULES
from threefold.models.registry import check_spec
from threefold.models.rope import rope_from_gguf
from threefold.models.shapes import check_shapes, expected_shapes, tables
from threefold.models.spec import ModelSpec, Quantization

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_EMBEDDING = "token_embd.weight"
_FREQ_FACTORS = "rope_freqs.weight"
_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_CHUNK_VALUES = 1 << 18  # values unpacked at once: 1 MiB in float32, which stays in a core's cache
_SERIAL_VALUES = 1 << 14  # half of what torch's pool takes as worth sharing

_Unpack = Callable[[np.ndarray], np.ndarray]
_UNPACK: dict[Kind, _Unpack] = {  # [rows, bytes a row] uint8 -> [rows, columns] float
    Kind.F32: lambda raw: raw.view(np.float32),
    Kind.F16: lambda raw: raw.view(np.float16),
    Kind.BF16: quants.BF16.dequantize_rows,
    Kind.Q8_0: quants.Q8_0.dequantize_rows,
    Kind.Q4_0: quants.Q4_0.dequantize_rows,
    Kind.Q4_1: quants.Q4_1.dequantize_rows,
    Kind.Q5_0: quants.Q5_0.dequantize_rows,
    Kind.Q5_1: quants.Q5_1.dequantize_rows,
    Kind.Q2_K: quants.Q2_K.dequantize_rows,
    Kind.Q3_K: quants.Q3_K.dequantize_rows,
    Kind.Q4_K: quants.Q4_K.dequantize_rows,
    Kind.Q5_K: quants.Q5_K.dequantize_rows,
    Kind.Q6_K: quants.Q6_K.dequantize_rows,
}
_DTYPES = {Kind.F32: "float32", Kind.F16: "float16"}  # all others unpack to bfloat16


def gguf_name(name: str) -> str:
    """What a GGUF file calls the weight of a canonical name."""
    stem, _, suffix = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{suffix}"


def storage_kind(file: GgufFile) -> Kind:
    """The packing that most of the file's values have."""
    values: Counter[Kind] = Counter()
    for tensor in file.tensors.values():
        values[tensor.kind] += tensor.num_bytes
    return values.most_common(1)[0][0] if values else Kind.F32


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """The model that a GGUF file holds.

    Raises:
        ModelLoadError: an unknown architecture, or metadata that is missing or cannot hold.
    """
    metadata = Fields(file.metadata, str(file.path))
    arch = metadata.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise ModelLoadError(f"{file.path}: unknown architecture {arch!r:.80}; known: {', '.join(ARCHITECTURES)}")
    if metadata.integer(f"{arch}.expert_count", 0, low=0):
        raise metadata.fault(f"{arch}.expert_count", "must be 0: mixtures of experts are not built")
    if metadata.integer("split.count", 0, low=0) > 1:
        raise metadata.fault("split.count", "must be 1: merge the split GGUF files into one first")
    if _EMBEDDING not in file.tensors:
        raise ModelLoadError(f"{file.path}: tensor {_EMBEDDING} is missing; the file holds no language model's weights")
    num_heads = metadata.integer(f"{arch}.attention.head_count")
    hidden_size = metadata.integer(f"{arch}.embedding_length")
    head_dim = metadata.integer(f"{arch}.attention.key_length", max(hidden_size // num_heads, 1))
    _check_head(metadata, arch, head_dim)
    ends = [metadata.integers(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    spec = ModelSpec(
        architecture=arch,
        vocab_size=file.tensors[_EMBEDDING].shape[0],
        hidden_size=hidden_size,
        num_layers=metadata.integer(f"{arch}.block_count", high=10_000),
        num_heads=num_heads,
        num_kv_heads=metadata.integer(f"{arch}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=metadata.integer(f"{arch}.feed_forward_length"),
        max_positions=metadata.integer(f"{arch}.context_length"),
        norm_eps=metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=rope_from_gguf(metadata, arch, _freq_factors(file)),
        has_qkv_bias="blk.0.attn_q.bias" in file.tensors,
        has_o_bias="blk.0.attn_output.bias" in file.tensors,
        has_mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        has_qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        has_tied_head="output.weight" not in file.tensors,
        dtype=_DTYPES.get(storage_kind(file), "bfloat16"),
        bos_token_id=next(iter(metadata.integers("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=tuple(dict.fromkeys(token for group in ends for token in group)),
    )
    check_spec(spec, str(file.path))
    tokens = file.metadata.get("tokenizer.ggml.tokens", [])
    if isinstance(tokens, list) and len(tokens) > spec.vocab_size:
        raise ModelLoadError(f"{file.path}: {len(tokens)} tokens, but the embedding has {spec.vocab_size} rows")
    return spec


def _check_head(metadata: Fields, arch: str, head_dim: int) -> None:
    for name in ("rope.dimension_count", "attention.value_length"):
        if metadata.integer(f"{arch}.{name}", head_dim) != head_dim:
            raise metadata.fault(f"{arch}.{name}", f"must equal the width of a head ({head_dim})")


def _freq_factors(file: GgufFile) -> np.ndarray | None:
    """[head_dim / 2] float32 divisors of the rotary frequencies, if the file has them."""
    tensor = file.tensors.get(_FREQ_FACTORS)
    if tensor is None:
        return None
    if tensor.kind is not Kind.F32 or not 0 < tensor.num_bytes <= 4096:
        raise ModelLoadError(f"{file.path}: tensor {_FREQ_FACTORS} must be a short row of float32")
    with file.path.open("rb") as data:
        return _read_bytes(data, file, tensor.offset_bytes, tensor.num_bytes).view(np.float32)


class GgufWeights:
    """The weights of a GGUF file, checked against the spec.

    Raises:
        ModelLoadError: tensors missing, left over, of another shape, or packed in a way that is not read.
    """

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        self._file = file
        self.spec = spec
        self._names = {name: gguf_name(name) for name in expected_shapes(replace(spec, quantization=None))}
        canonical = {stored: name for name, stored in self._names.items()}
        found = {canonical.get(name, name): item.shape for name, item in file.tensors.items() if name != _FREQ_FACTORS}
        check_shapes(replace(spec, quantization=None), found, str(file.path))
        for name in self._names.values():
            self._check_kind(name, file.tensors[name])

    def _check_kind(self, name: str, tensor: GgufTensor) -> None:
        if tensor.kind not in _UNPACK:
            known = ", ".join(kind.name for kind in _UNPACK)
            raise ModelLoadError(f"{self._file.path}: {name} is packed as {tensor.kind.name}; known types: {known}")

    def kept_packed(self, dtype: torch.dtype, device: torch.device) -> GgufWeights:
        """The same weights, those left packed that can be multiplied so here; themselves if there are none."""
        packings = self._packings() if has_packed_products(dtype, device) else {}
        if not packings:
            return self
        quantization = Quantization("gguf", f"GGUF {storage_kind(self._file).name}", "group", packings=packings)
        return GgufWeights(self._file, replace(self.spec, quantization=quantization))

    def _packings(self) -> dict[str, str]:
        """What each module can be packed in; products that are computed as one, in one packing or not at all."""
        modules: list[tuple[str, ...]] = [(name,) for name in tables(self.spec)]
        for index in range(self.spec.num_layers):
            names = {part: f"model.layers.{index}.{module}" for part, module in MODULES.items()}
            modules += [tuple(names.pop(part) for part in together) for together in FUSED]
            modules += [(name,) for name in names.values()]
        packings: dict[str, str] = {}
        for together in modules:
            stored = [self._file.tensors[self._names[f"{name}.weight"]] for name in together]
            if all(one.kind.name in PACKINGS and fits_records(*one.shape) for one in stored):
                packings.update(dict.fromkeys(together, common_packing([one.kind.name for one in stored])))
        return packings

    def read(
        self,
        dtype: torch.dtype,
        device: torch.device | None = None,  # noqa: ARG002 (read on the host, wherever it goes)
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight once, on the CPU, unpacked to `dtype` where it does not stay packed."""
        packings = {} if self.spec.quantization is None else self.spec.quantization.packings
        with self._file.path.open("rb") as data:
            for name, stored in self._names.items():
                module = name.removesuffix(".weight")
                tensor, is_permuted = self._file.tensors[stored], self._is_permuted(name)
                if name != module and module in packings:
                    parts = self._read_packed(data, tensor, packings[module], is_permuted)
                    yield from ((f"{module}.{kind}", part) for kind, part in parts.items())
                else:
                    yield name, self._read(data, tensor, dtype, is_permuted)

    def _is_permuted(self, name: str) -> bool:
        """True for what llama files store in the order of a rotation over neighbouring pairs."""
        return self.spec.architecture == "llama" and (".q_proj." in name or ".k_proj." in name)

    def _read_packed(
        self, data: BinaryIO, tensor: GgufTensor, packing: str, is_permuted: bool
    ) -> dict[str, torch.Tensor]:
        raw = _read_bytes(data, self._file, tensor.offset_bytes, tensor.num_bytes).reshape(tensor.shape[0], -1)
        if is_permuted:
            raw = _unpermute(raw, self.spec.head_dim)
        parts = take_apart(raw, tensor.kind.name).as_packed_in(packing, tensor.kind.name)
        return {kind: torch.from_numpy(part) for kind, part in parts._asdict().items() if part is not None}

    def _read(self, data: BinaryIO, tensor: GgufTensor, dtype: torch.dtype, is_permuted: bool) -> torch.Tensor:
        out = fresh_tensor(tensor.shape, dtype)
        head_dim = self.spec.head_dim
        # A vector of a llama q or k bias is permuted by elements: one column.
        columns = tensor.shape[-1] if len(tensor.shape) > 1 else 1 if is_permuted else tensor.shape[0]
        rows = out.view(-1, columns)
        row_bytes = tensor.num_bytes // len(rows)
        step = max(_CHUNK_VALUES // columns // head_dim, 1) * head_dim
        unpack = _UNPACK[tensor.kind]
        for begin in range(0, len(rows), step):
            target = rows[begin : begin + step]
            raw = _read_bytes(data, self._file, tensor.offset_bytes + begin * row_bytes, len(target) * row_bytes)
            raw = raw.reshape(len(target), row_bytes)
            if is_permuted:
                raw = _unpermute(raw, head_dim)
            with np.errstate(all="ignore"):  # odd scales make odd weights; that is no reason to warn
                _convert(torch.from_numpy(unpack(raw)), target)
        return out


def _convert(values: torch.Tensor, target: torch.Tensor) -> None:
    """Copy rows into another type, in pieces that torch keeps on this thread.

    Thousands of short jobs for its thread pool take five times as long as none when other processes use the cores too.
    """
    step = max(_SERIAL_VALUES // values.shape[1], 1)
    for begin in range(0, len(values), step):
        target[begin : begin + step] = values[begin : begin + step]


def _unpermute(raw: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of whole heads from (pair, half) order back to (half, pair), as Hugging Face has them."""
    heads = raw.reshape(-1, head_dim // 2, 2, raw.shape[-1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(raw.shape)


def _read_bytes(data: BinaryIO, file: GgufFile, offset_bytes: int, num_bytes: int) -> np.ndarray:
    """[num_bytes] uint8 from a place in the file."""
    data.seek(offset_bytes)
    raw = np.fromfile(data, np.uint8, num_bytes)
    if len(raw) != num_bytes:
        raise ModelLoadError(f"{file.path}: became shorter while it was read")
    return raw
