"""Four-bit checkpoints and what libraries say that they mean.

compressed-tensors writes its own kind and reads words of the AWQ and GPTQ kinds; their weights must be those of our
products. Random words are a valid checkpoint of either, so nothing here is packed by us.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from threefold.models.checkpoint import open_checkpoint
from threefold.models.decoder import Decoder

GROUP = 32
SHAPE = {
    "vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip


def make_packed(folder: Path, *, is_symmetric: bool, group_size: int | None) -> Path:
    """A tiny Llama, rounded to four bits by its groups' ranges and saved by compressed-tensors."""
    import transformers
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, initializer_range=0.2))
    strategy = "channel" if group_size is None else "group"
    weights = QuantizationArgs(num_bits=4, symmetric=is_symmetric, strategy=strategy, group_size=group_size)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            groups = module.weight.data.unflatten(1, (-1, group_size or module.weight.shape[1]))
            scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), weights)
            module.weight_scale.data.copy_(scale)
            if not is_symmetric:
                module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return folder


def as_transformers_reads_it(folder: Path) -> dict[str, torch.Tensor]:
    """Plain weights by name."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=transformers.CompressedTensorsConfig(run_compressed=False)
    )
    return {name: tensor.float() for name, tensor in model.state_dict().items()}


def products_of(folder: Path) -> dict[str, torch.Tensor]:
    """What each product of our model does to the unit vectors, which is its weight: [out, in]."""
    checkpoint = open_checkpoint(folder)
    decoder = Decoder(checkpoint.spec, torch.float32, torch.device("cpu"))
    decoder.load(checkpoint.tensors(torch.float32))
    found = {}
    for index, layer in enumerate(decoder._layers):
        names = {"self_attn.q_proj": 64, "self_attn.k_proj": 32, "self_attn.v_proj": 32}
        parts = layer.attention.qkv(torch.eye(64)).T.split(list(names.values()))
        found |= {f"model.layers.{index}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
        found[f"model.layers.{index}.self_attn.o_proj.weight"] = layer.attention.out(torch.eye(64)).T
        found[f"model.layers.{index}.mlp.down_proj.weight"] = layer.mlp.down(torch.eye(96)).T
    return found


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("group_size", [GROUP, None])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_packed_by_compressed_tensors(tmp_path: Path, is_symmetric: bool, group_size: int | None) -> None:
    folder = make_packed(tmp_path, is_symmetric=is_symmetric, group_size=group_size)
    section = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (section["format"], section["config_groups"]["group_0"]["weights"]["symmetric"]) == (
        "pack-quantized",
        is_symmetric,
    )
    check_products(folder, as_transformers_reads_it(folder))


def check_products(folder: Path, right: dict[str, torch.Tensor]) -> None:
    for name, weight in products_of(folder).items():
        assert weight.std() > 0.1
        torch.testing.assert_close(weight, right[name], rtol=1e-6, atol=1e-6)


def save_words(folder: Path, section: dict[str, Any], packed: Callable[[int, int], dict[str, torch.Tensor]]) -> Path:
    """A checkpoint whose products' tensors are what `packed` makes for (outputs, inputs)."""
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(2)
    transformers.LlamaConfig(**SHAPE, architectures=["LlamaForCausalLM"], quantization_config=section).save_pretrained(
        folder
    )
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).state_dict()
    tensors = {name: tensor for name, tensor in plain.items() if not name.endswith("_proj.weight")}
    for name in sorted(plain.keys() - tensors.keys()):
        tensors |= {name.replace("weight", kind): tensor for kind, tensor in packed(*plain[name].shape).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def random_words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32)


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("has_zeros", [True, False])
def test_awq_as_compressed_tensors_converts_it(tmp_path: Path, has_zeros: bool) -> None:
    from compressed_tensors.entrypoints.convert import convert_checkpoint
    from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter

    def packed(outputs: int, inputs: int) -> dict[str, torch.Tensor]:
        words = {"qweight": random_words(inputs, outputs // 8), "scales": torch.rand(inputs // GROUP, outputs) + 0.5}
        return words | ({"qzeros": random_words(inputs // GROUP, outputs // 8)} if has_zeros else {})

    section = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": has_zeros}
    folder = save_words(tmp_path / "awq", section, packed)
    convert_checkpoint(
        folder, tmp_path / "converted", AutoAWQConverter.from_autoawq_config(section), max_workers=1, device="cpu"
    )

    check_products(folder, as_transformers_reads_it(tmp_path / "converted"))


@pytest.mark.parametrize(("form", "taken_off"), [("gptq", 1), ("gptq_v2", 0)])
def test_gptq_by_compressed_tensors_words(tmp_path: Path, form: str, taken_off: int) -> None:
    """The library has no GPTQ; its unpacking of words does for both dimensions, the rest is the format's formula."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    right = []

    def packed(outputs: int, inputs: int) -> dict[str, torch.Tensor]:
        groups = torch.arange(inputs, dtype=torch.int32) // GROUP
        qweight, qzeros = random_words(inputs // 8, outputs), random_words(inputs // GROUP, outputs // 8)
        scales = torch.rand(inputs // GROUP, outputs) + 0.5
        values = unpack_from_int32(qweight, 4, torch.Size((inputs, outputs)), packed_dim=0).int() + 8
        zeros = (unpack_from_int32(qzeros, 4, torch.Size(scales.shape)).int() + 8 + taken_off) % 16
        right.append(((values - zeros[groups]) * scales[groups]).T)
        return {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": groups}

    section = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "checkpoint_format": form}
    products = products_of(save_words(tmp_path, section, packed))

    for weight in products.values():
        assert any(weight.shape == one.shape and torch.allclose(weight, one, rtol=1e-6) for one in right)
