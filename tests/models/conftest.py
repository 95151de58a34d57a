"""Tiny models in every form that is read: transformers folders, GGUF files, plain config dicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quants

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB = 64, 2, 4, 2, 16, 96, 160


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny tensors: a second thread costs more than it gives on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture
def config() -> dict[str, Any]:
    """A Llama config.json with nothing but what it must have."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": 256,
    }


@pytest.fixture
def hf_folder(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, torch.Tensor]]]:
    """Makes a folder as transformers saves a tiny random model; gives it and the model's own weights."""

    def make(name: str, shard_size: str = "1GB", **more: Any) -> tuple[Path, dict[str, torch.Tensor]]:
        import transformers

        kind = getattr(transformers, name)
        sizes = {
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "intermediate_size": INNER,
            "max_position_embeddings": 256,
            "pad_token_id": None,
        }
        torch.manual_seed(7)
        model = kind(kind.config_class(**sizes | more)).to(torch.bfloat16)
        for parameter in model.parameters():  # biases and norms start out the same; here none may be mistaken
            parameter.data.normal_(std=0.5)
        folder = tmp_path / f"{name}-{shard_size}"
        model.save_pretrained(folder, max_shard_size=shard_size)
        weights = dict(model.state_dict())
        if model.config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        return folder, weights

    return make


WriteGguf = Callable[[Mapping[str, Any], Mapping[str, tuple[np.ndarray, Kind]]], Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Writes a GGUF file of the given pairs and tensors (float32 values and how to pack them)."""

    def write(metadata: Mapping[str, Any], tensors: Mapping[str, tuple[np.ndarray, Kind]]) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = GGUFWriter(path, metadata.get("general.architecture", "llama"))
        for key, value in metadata.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for name, (values, kind) in tensors.items():
            packed = values if values.dtype == np.uint8 else quants.quantize(values.astype(np.float32), kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@pytest.fixture
def gguf_metadata() -> Callable[..., dict[str, Any]]:
    """Pairs of a tiny model, as converters write them."""

    def make(arch: str = "llama", **more: Any) -> dict[str, Any]:
        return {
            "general.architecture": arch,
            f"{arch}.block_count": LAYERS,
            f"{arch}.context_length": 256,
            f"{arch}.embedding_length": HIDDEN,
            f"{arch}.feed_forward_length": INNER,
            f"{arch}.attention.head_count": HEADS,
            f"{arch}.attention.head_count_kv": KV_HEADS,
            f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{arch}.rope.dimension_count": HEAD_DIM,
        } | more

    return make


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


@pytest.fixture
def to_gguf_tensors() -> Callable[..., dict[str, tuple[np.ndarray, Kind]]]:
    """Names and orders weights as a converter does; llama's q and k go to neighbouring pairs."""

    def convert(
        weights: Mapping[str, torch.Tensor], arch: str, kind: Kind = Kind.F32
    ) -> dict[str, tuple[np.ndarray, Kind]]:
        tensors = {}
        for name, weight in weights.items():
            values = weight.float().numpy()
            if arch == "llama" and ("q_proj" in name or "k_proj" in name):
                num_heads = values.shape[0] // HEAD_DIM
                halves = values.reshape(num_heads, 2, HEAD_DIM // 2, -1)
                values = np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(values.shape)
            # As converters do, vectors stay in float32.
            tensors[_gguf_name(name)] = (np.ascontiguousarray(values), kind if values.ndim > 1 else Kind.F32)
        return tensors

    return convert


def _gguf_name(name: str) -> str:
    plain = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    plain["lm_head.weight"] = "output.weight"
    if name in plain:
        return plain[name]
    parts = name.split(".")
    return f"blk.{parts[2]}.{GGUF_NAMES[parts[-2]]}.{parts[-1]}"


@pytest.fixture
def tiny_gguf(
    write_gguf: WriteGguf, gguf_metadata: Callable[..., dict[str, Any]], random_weights: Callable[[], Any]
) -> Callable[..., Path]:
    """Writes a whole small llama GGUF with further pairs."""

    def make(more_tensors: Mapping[str, tuple[np.ndarray, Kind]] | None = None, **more: Any) -> Path:
        return write_gguf(gguf_metadata(**more), random_weights() | dict(more_tensors or {}))

    return make


@pytest.fixture
def random_weights(to_gguf_tensors: Callable[..., Any]) -> Callable[[], dict[str, tuple[np.ndarray, Kind]]]:
    """Tensors of a tiny llama with a tied head."""
    from threefold.models.shapes import expected_shapes
    from threefold.models.spec import ModelSpec

    def make() -> dict[str, tuple[np.ndarray, Kind]]:
        spec = ModelSpec("llama", VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, 256, has_tied_head=True)
        generator = torch.Generator().manual_seed(3)
        shapes = expected_shapes(spec).items()
        return to_gguf_tensors({name: torch.randn(shape, generator=generator) for name, shape in shapes}, "llama")

    return make


@pytest.fixture
def save_folder(tmp_path: Path, config: dict[str, Any]) -> Callable[..., Path]:
    """Makes a folder with config.json and the given weights in model.safetensors, without transformers."""

    def make(weights: Mapping[str, torch.Tensor], **more: Any) -> Path:
        from safetensors.torch import save_file

        folder = tmp_path / "folder"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | more))
        save_file(dict(weights), folder / "model.safetensors")
        return folder

    return make
