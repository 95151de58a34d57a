"""GGUF files as models: every packing against the library's own unpacking, names and orders against transformers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from threefold.errors import ModelLoadError
from threefold.kernels.packed import has_packed_products
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.layers.gguf import GgufScheme
from threefold.models.decoder import Decoder
from threefold.models.gguf import GgufWeights, gguf_name, spec_from_gguf, storage_kind
from threefold.models.gguf_file import read_gguf
from threefold.models.shapes import expected_shapes, kept_bytes
from threefold.models.spec import RopeSpec

CPU = torch.device("cpu")
NEEDS_PACKED = pytest.mark.skipif(not has_packed_products(torch.bfloat16, CPU), reason="no packed products here")
WRITABLE = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)
K_QUANTS = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K)
OUT_PROJ = "blk.0.attn_output.weight"
INNER = 256  # one K-quant block


def test_metadata_becomes_a_spec(tiny_gguf: Callable[..., Path]) -> None:
    more = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5}
    spec = spec_from_gguf(read_gguf(tiny_gguf(**more, **{"llama.rope.freq_base": 1e5})))
    assert (spec.architecture, spec.vocab_size, spec.hidden_size, spec.num_layers) == ("llama", 160, 64, 2)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.intermediate_size) == (4, 2, 16, 96)
    assert spec.rope == RopeSpec(1e5)
    assert spec.has_tied_head and not spec.has_qkv_bias
    assert (spec.bos_token_id, spec.eos_token_ids, spec.dtype) == (1, (2, 5), "float32")
    assert spec.norm_eps == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"arch": "gemma"}, "unknown architecture 'gemma'; known: llama, qwen2, qwen3"),
        ({"llama.expert_count": 8}, r"llama\.expert_count must be 0"),
        ({"split.count": 2}, r"split\.count must be 1: merge"),
        ({"llama.rope.dimension_count": 8}, r"dimension_count must equal the width of a head \(16\)"),
        ({"llama.attention.head_count": "four"}, "head_count must be a whole number"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads cannot share 3"),
        ({"tokenizer.ggml.tokens": ["t"] * 161}, "161 tokens, but the embedding has 160 rows"),
    ],
)
def test_metadata_that_cannot_hold(more: dict[str, Any], message: str, tiny_gguf: Callable[..., Path]) -> None:
    with pytest.raises(ModelLoadError, match=message):
        spec_from_gguf(read_gguf(tiny_gguf(**more)))


@pytest.mark.parametrize("kind", WRITABLE + K_QUANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_packing_unpacks_as_the_library_does(
    kind: Kind, dtype: torch.dtype, tiny_gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threefold.models.gguf._CHUNK_VALUES", 16 * INNER)  # several pieces a tensor
    packed = pack(kind, rows=64, columns=INNER)
    expected = torch.from_numpy(quants.dequantize(packed, kind).astype(np.float32)).to(dtype)
    down = {f"blk.{layer}.ffn_down.weight": (packed, kind) for layer in (0, 1)}
    wide = {
        f"blk.{layer}.ffn_{name}.weight": (np.ones((INNER, 64), np.float32), Kind.F32)
        for layer in (0, 1)
        for name in ("up", "gate")
    }
    file = read_gguf(tiny_gguf(down | wide, **{"llama.feed_forward_length": INNER}))
    read = dict(GgufWeights(file, spec_from_gguf(file)).read(dtype))
    tensor = read["model.layers.1.mlp.down_proj.weight"]
    assert tensor.dtype == dtype
    assert torch.equal(tensor, expected)


def pack(kind: Kind, rows: int, columns: int) -> np.ndarray:
    """Random packed rows; K-quants, which the library cannot write, as random bytes with tame scales."""
    random = np.random.default_rng(int(kind))
    if kind in WRITABLE:
        return quants.quantize(random.standard_normal((rows, columns), np.float32), kind)
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (rows * columns // block_values, block_bytes), np.uint8)
    scales = {Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
    for at in scales[kind]:
        raw[:, at : at + 2] = random.uniform(0.001, 0.1, (len(raw), 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def test_a_small_packing_is_close_to_what_was_packed(
    random_weights: Callable[[], Any], write_gguf: Callable[..., Path], gguf_metadata: Callable[..., dict[str, Any]]
) -> None:
    plain = random_weights()
    packed = {name: (values, Kind.Q8_0 if values.ndim > 1 else Kind.F32) for name, (values, _) in plain.items()}
    path = write_gguf(gguf_metadata(), packed)
    file = read_gguf(path)
    assert storage_kind(file) is Kind.Q8_0
    spec = spec_from_gguf(file)
    assert spec.dtype == "bfloat16"
    read = dict(GgufWeights(file, spec).read(torch.float32))
    embedding = torch.from_numpy(plain["token_embd.weight"][0])
    assert (read["model.embed_tokens.weight"] - embedding).abs().max() < 0.03


@pytest.mark.parametrize(
    ("name", "arch", "more"),
    [
        ("LlamaForCausalLM", "llama", {"attention_bias": True, "mlp_bias": True}),
        ("MistralForCausalLM", "llama", {"tie_word_embeddings": True}),
        ("Qwen2ForCausalLM", "qwen2", {"tie_word_embeddings": True}),
        ("Qwen3ForCausalLM", "qwen3", {}),
    ],
)
def test_names_and_orders_are_those_of_transformers(
    name: str,
    arch: str,
    more: dict[str, Any],
    hf_folder: Callable[..., Any],
    to_gguf_tensors: Callable[..., Any],
    write_gguf: Callable[..., Path],
    gguf_metadata: Callable[..., dict[str, Any]],
) -> None:
    _, weights = hf_folder(name, **more)
    metadata = gguf_metadata(arch, **{f"{arch}.attention.key_length": 16})
    file = read_gguf(write_gguf(metadata, to_gguf_tensors(weights, arch)))
    spec = spec_from_gguf(file)
    assert (spec.has_qkv_bias, spec.has_o_bias) == (
        name in ("LlamaForCausalLM", "Qwen2ForCausalLM"),
        "mlp_bias" in more,
    )
    read = dict(GgufWeights(file, spec).read(torch.bfloat16))
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[key], weight) for key, weight in weights.items())


def test_names() -> None:
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"
    assert gguf_name("lm_head.weight") == "output.weight"
    assert gguf_name("model.layers.12.self_attn.q_norm.weight") == "blk.12.attn_q_norm.weight"
    assert gguf_name("model.layers.0.mlp.down_proj.bias") == "blk.0.ffn_down.bias"


def test_llama3_factors_in_a_tensor(tiny_gguf: Callable[..., Path]) -> None:
    ones = np.ones(8, np.float32)
    spec = spec_from_gguf(read_gguf(tiny_gguf({"rope_freqs.weight": (ones, Kind.F32)})))
    assert spec.rope == RopeSpec()
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight must be a short row of float32"):
        spec_from_gguf(read_gguf(tiny_gguf({"rope_freqs.weight": (ones, Kind.F16)})))


def test_tensors_that_do_not_fit(tiny_gguf: Callable[..., Path]) -> None:
    def opened(**tensors: tuple[np.ndarray, Kind]) -> GgufWeights:
        file = read_gguf(tiny_gguf({name.replace("__", "."): value for name, value in tensors.items()}))
        return GgufWeights(file, spec_from_gguf(file))

    square = np.ones((64, 64), np.float32)
    with pytest.raises(ModelLoadError, match=r"o_proj\.weight has shape \[64, 32\], .* asks for \[64, 64\]"):
        opened(blk__0__attn_output__weight=(square[:, :32], Kind.F32))
    with pytest.raises(ModelLoadError, match=r"1 tensors \(blk\.0\.attn_sinks\.weight\) have no place"):
        opened(blk__0__attn_sinks__weight=(square, Kind.F32))
    with pytest.raises(ModelLoadError, match=r"attn_output\.weight is packed as IQ4_NL; known types: F32, F16"):
        opened(blk__0__attn_output__weight=(np.zeros((64, 36), np.uint8), Kind.IQ4_NL))
    file = read_gguf(tiny_gguf())
    with pytest.raises(ModelLoadError, match=r"9 tensors \(.*\) missing"):
        GgufWeights(file, replace(spec_from_gguf(file), num_layers=3))


def test_a_file_that_shrinks_while_it_is_read(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    file = read_gguf(path)
    source = GgufWeights(file, spec_from_gguf(file))
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size // 2)
    with pytest.raises(ModelLoadError, match="became shorter while it was read"):
        list(source.read(torch.float32))


def test_unpacking_takes_a_few_megabytes_besides_the_weights(
    write_gguf: Callable[..., Path], gguf_metadata: Callable[..., dict[str, Any]], random_weights: Callable[[], Any]
) -> None:
    rows = 120_000  # 30 MiB in float32, were it unpacked at once
    embedding = np.random.default_rng(0).standard_normal((rows, 64), np.float32)
    path = write_gguf(gguf_metadata(), random_weights() | {"token_embd.weight": (embedding, Kind.Q8_0)})
    file = read_gguf(path)
    source = GgufWeights(file, spec_from_gguf(file))
    tracemalloc.start()
    try:
        for _ in source.read(torch.bfloat16):
            pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject, tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    content = bytearray(path.read_bytes())
    data_begin = min(item.offset_bytes for item in read_gguf(path).tensors.values())
    for at in data.draw(st.lists(st.integers(0, data_begin - 1), min_size=1, max_size=3)):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        file = read_gguf(path)
        list(GgufWeights(file, spec_from_gguf(file)).read(torch.bfloat16))
    except ModelLoadError as error:
        assert "\n" not in str(error)


def packed_source(path: Path) -> GgufWeights:
    file = read_gguf(path)
    return GgufWeights(file, spec_from_gguf(file)).kept_packed(torch.bfloat16, CPU)


@NEEDS_PACKED
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
def test_packed_weights_are_the_unpacked_ones(
    kind: Kind, tiny_gguf: Callable[..., Path], random_weights: Callable[[], Any]
) -> None:
    tensors = {name: (values, kind) for name, (values, _) in random_weights().items() if values.ndim > 1}
    source = packed_source(tiny_gguf(tensors))
    plain = dict(GgufWeights(source._file, replace(source.spec, quantization=None)).read(torch.float32))
    packed = dict(source.read(torch.bfloat16))

    assert packed.keys() == expected_shapes(source.spec).keys()
    assert all(tuple(packed[name].shape) == shape for name, shape in expected_shapes(source.spec).items())
    modules = {name.removesuffix(".weight") for name in plain if not name.endswith("norm.weight")}
    assert source.spec.quantization is not None
    assert dict.fromkeys(modules, kind.name) == source.spec.quantization.packings
    for module in modules:
        parts = {name.rpartition(".")[2]: part for name, part in packed.items() if name.startswith(f"{module}.")}
        weight = GgufScheme(kind.name).weight(parts)
        torch.testing.assert_close(weight.rows(torch.arange(weight.num_outputs)), plain[f"{module}.weight"])


@NEEDS_PACKED
def test_products_computed_as_one_share_a_packing_or_stay_plain(
    tiny_gguf: Callable[..., Path], random_weights: Callable[[], Any]
) -> None:
    kinds = {
        "blk.0.attn_q": Kind.Q4_0, "blk.0.attn_k": Kind.Q4_1, "blk.0.attn_v": Kind.Q4_0,
        "blk.1.attn_q": Kind.Q4_1, "blk.1.attn_k": Kind.Q8_0, "blk.1.attn_v": Kind.Q8_0,
        "blk.0.ffn_gate": Kind.Q8_0, "blk.0.ffn_up": Kind.F16, "blk.0.ffn_down": Kind.Q4_0,
    }  # fmt: skip
    values = random_weights()
    tensors = {f"{name}.weight": (values[f"{name}.weight"][0], kind) for name, kind in kinds.items()}
    source = packed_source(tiny_gguf(tensors))

    assert source.spec.quantization is not None
    assert source.spec.quantization.packings == {
        **{f"model.layers.0.self_attn.{part}_proj": "Q4_1" for part in "qkv"},
        **{f"model.layers.1.self_attn.{part}_proj": "Q5_1" for part in "qkv"},
        "model.layers.0.mlp.down_proj": "Q4_0",
    }
    assert logits_of(source, torch.bfloat16).isfinite().all()


@NEEDS_PACKED
def test_nothing_stays_packed_where_products_cannot_read_it(tiny_gguf: Callable[..., Path]) -> None:
    file = read_gguf(tiny_gguf())
    unpacked = GgufWeights(file, spec_from_gguf(file))
    assert unpacked.kept_packed(torch.bfloat16, CPU) is unpacked  # a file of float32

    packed = {"blk.0.ffn_down.weight": (np.ones((64, 96), np.float32), Kind.Q8_0)}
    file = read_gguf(tiny_gguf(packed))
    unpacked = GgufWeights(file, spec_from_gguf(file))
    assert unpacked.kept_packed(torch.float32, CPU) is unpacked
    assert unpacked.kept_packed(torch.bfloat16, torch.device("cuda")) is unpacked
    assert unpacked.kept_packed(torch.bfloat16, CPU) is not unpacked


@NEEDS_PACKED
def test_a_packed_model_says_what_the_unpacked_one_says(
    tiny_gguf: Callable[..., Path], random_weights: Callable[[], Any]
) -> None:
    values = {name: values / 8 for name, (values, _) in random_weights().items() if values.ndim > 1}
    source = packed_source(tiny_gguf({name: (one, Kind.Q8_0) for name, one in values.items()}))
    plain = GgufWeights(source._file, replace(source.spec, quantization=None))
    expected = logits_of(plain, torch.float32)

    error = (logits_of(source, torch.bfloat16) - expected).norm() / expected.norm()

    assert 0 < float(error) < 0.05
    assert kept_bytes(source.spec, torch.bfloat16, CPU) < 0.6 * kept_bytes(plain.spec, torch.bfloat16, CPU)


def logits_of(source: GgufWeights, dtype: torch.dtype) -> torch.Tensor:
    decoder = Decoder(source.spec, dtype, CPU)
    decoder.load(source.read(dtype))
    tokens = torch.arange(12)
    whole = torch.tensor([0, 12], dtype=torch.int32)
    blocks = torch.zeros((1, 1), dtype=torch.int32)
    batch = Batch(tokens + 5, tokens, tokens, whole, whole[1:], blocks, tokens, 12, 12)
    return decoder.logits(decoder.forward(batch, allocate_kv(source.spec, 1, 16, dtype, CPU)))
