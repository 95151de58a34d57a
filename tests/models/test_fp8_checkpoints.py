"""FP8 checkpoints of every kind, small ones: made with the library that users use, or to the published format."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.fp8 import E4M3, MAX_E4M3
from threefold.models.checkpoint import Checkpoint, open_checkpoint
from threefold.models.decoder import Decoder
from threefold.models.quantization import MADE_HERE, layer_schemes
from threefold.models.registry import spec_from_config
from threefold.models.shapes import expected_shapes, kept_bytes

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]
Save = Callable[..., Path]
PRODUCT = re.compile(r".*_proj\.weight")
PLAIN_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
BLOCK = {
    **PLAIN_FP8,
    "weight_block_size": [16, 32],
    "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
}
FBGEMM = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
NAME = "model.layers.0.mlp.down_proj"


@pytest.fixture
def plain(config: dict[str, Any]) -> Tensors:
    torch.manual_seed(0)
    shapes = expected_shapes(spec_from_config(config | {"tie_word_embeddings": False}))
    return {name: (torch.randn(shape) * 0.2).bfloat16() for name, shape in shapes.items()}


def by_blocks(weight: torch.Tensor, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales by block of any matrix that blocks divide."""
    tiles = weight.float().view(weight.shape[0] // outputs, outputs, weight.shape[1] // inputs, inputs)
    scales = tiles.abs().amax(dim=(1, 3)) / MAX_E4M3
    return (tiles / scales[:, None, :, None]).view(weight.shape).to(E4M3), scales


def quantised(plain: Tensors, scale_name: str, blocks: tuple[int, int] | None) -> tuple[Tensors, Tensors]:
    """A checkpoint's tensors, and what its products stand for; blocks of (0, 0) are whole matrices, None outputs."""
    stored, meant = dict(plain), dict(plain)
    for name in [name for name in plain if PRODUCT.fullmatch(name)]:
        weight = plain[name]
        outputs, inputs = (1, weight.shape[1]) if blocks is None else blocks if any(blocks) else tuple(weight.shape)
        values, scales = by_blocks(weight, outputs, inputs)
        stored[name] = values
        stored[name.replace("weight", scale_name)] = scales if blocks is None or any(blocks) else scales.view(1)
        wide = scales.repeat_interleave(outputs, 0).repeat_interleave(inputs, 1)
        meant[name] = values.float() * wide
    return stored, meant


def loaded(checkpoint: Checkpoint) -> Decoder:
    decoder = Decoder(checkpoint.spec, torch.float32, CPU)
    decoder.load(checkpoint.tensors(torch.float32, CPU))
    return decoder


def check_products(decoder: Decoder, meant: Tensors) -> None:
    """Every product is that with the weights that the checkpoint stands for."""
    x = torch.randn(3, 64)
    for index, layer in enumerate(decoder._layers):
        weights = {n.split(".")[-2]: w.float() for n, w in meant.items() if f"layers.{index}." in n}
        qkv = torch.cat([x @ weights[name].T for name in ("q_proj", "k_proj", "v_proj")], dim=1)
        torch.testing.assert_close(layer.attention.qkv(x), qkv, rtol=1e-4, atol=1e-5)
        inner = torch.nn.functional.silu(x @ weights["gate_proj"].T) * (x @ weights["up_proj"].T)
        torch.testing.assert_close(layer.mlp(x), inner @ weights["down_proj"].T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("section", "scale_name", "blocks"),
    [
        (BLOCK, "weight_scale_inv", (16, 32)),
        (PLAIN_FP8, "weight_scale", (0, 0)),
        (FBGEMM, "weight_scale", None),
    ],
)
def test_kinds_with_a_method_of_their_own(
    plain: Tensors, save_folder: Save, section: dict[str, Any], scale_name: str, blocks: tuple[int, int] | None
) -> None:
    stored, meant = quantised(plain, scale_name, blocks)
    checkpoint = open_checkpoint(save_folder(stored, quantization_config=section))

    assert checkpoint.spec.quantization is not None and checkpoint.spec.quantization.kind == "fp8"
    check_products(loaded(checkpoint), meant)


def test_blocks_as_transformers_writes_them(plain: Tensors, save_folder: Save) -> None:
    """Its quantiser asks for a card before it starts; the two operations that write and read weights do not."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    section = FineGrainedFP8Config(weight_block_size=(16, 32), modules_to_not_convert=["lm_head"])
    quantiser = SimpleNamespace(quantization_config=section)
    stored, meant = dict(plain), dict(plain)
    for name in [name for name in plain if PRODUCT.fullmatch(name)]:
        made = Fp8Quantize(quantiser).convert({name: plain[name]})
        stored |= made
        parts = {"weight": made[name], "weight_scale_inv": made[f"{name}_scale_inv"]}
        meant |= Fp8Dequantize(quantiser).convert(parts, full_layer_name=name)
    checkpoint = open_checkpoint(save_folder(stored, quantization_config=section.to_dict()))

    check_products(loaded(checkpoint), meant)


def test_rows_as_transformers_writes_them_for_fbgemm(
    plain: Tensors, save_folder: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounding itself is a kernel for cards; names, shapes and the section are the library's."""
    from transformers import FbgemmFp8Config
    from transformers.integrations import fbgemm_fp8

    def by_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, scales = by_blocks(weight, 1, weight.shape[1])
        return values, scales.view(-1)

    monkeypatch.setattr(fbgemm_fp8, "quantize_fp8_per_row", by_rows, raising=False)
    section = FbgemmFp8Config(modules_to_not_convert=["lm_head"])
    writer = fbgemm_fp8.FbgemmFp8Quantize(SimpleNamespace(quantization_config=section))
    model = SimpleNamespace(get_submodule=lambda name: None)  # asked only whether it is one of experts
    stored = dict(plain)
    for name in [name for name in plain if PRODUCT.fullmatch(name)]:
        stored |= {key: made.detach() for key, made in writer.convert({name: [plain[name]]}, model).items()}
    checkpoint = open_checkpoint(save_folder(stored, quantization_config=section.to_dict()))

    check_products(loaded(checkpoint), quantised(plain, "weight_scale", None)[1])


def test_fixed_input_scales_come_with_the_weights(plain: Tensors, save_folder: Save) -> None:
    stored, meant = quantised(plain, "weight_scale", (0, 0))
    stored |= {name.replace("weight", "input_scale"): torch.tensor(0.1) for name in plain if PRODUCT.fullmatch(name)}
    static = PLAIN_FP8 | {"activation_scheme": "static"}
    check_products(loaded(open_checkpoint(save_folder(stored, quantization_config=static))), meant)
    del stored[f"{NAME}.input_scale"]
    with pytest.raises(ModelLoadError, match=rf"1 tensors \({NAME}\.input_scale\) missing"):
        open_checkpoint(save_folder(stored, quantization_config=static))


@pytest.mark.parametrize("preset", ["FP8_DYNAMIC", "FP8", "FP8_BLOCK"])
def test_compressed_tensors(tmp_path: Path, preset: str) -> None:
    folder, meant = make_compressed(tmp_path, preset)
    check_products(loaded(open_checkpoint(folder)), meant)


def make_compressed(folder: Path, preset: str) -> tuple[Path, Tensors]:
    """A tiny Llama, quantised and saved by compressed-tensors, and what its weights stand for."""
    import transformers
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme

    torch.manual_seed(1)
    shape = transformers.LlamaConfig(
        vocab_size=160, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=96, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(shape).to(torch.bfloat16)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if preset == "FP8_BLOCK":
        scheme.weights.block_structure, scheme.input_activations.group_size = [32, 32], 32
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    wide = {}
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            weight = module.weight.data
            outputs, inputs = {"FP8_DYNAMIC": (1, weight.shape[1]), "FP8": tuple(weight.shape)}.get(preset, (32, 32))
            _, scales = by_blocks(weight, outputs, inputs)
            module.weight_scale.data.copy_(scales.view(module.weight_scale.shape))  # rounded to bfloat16
            if hasattr(module, "input_scale"):
                module.input_scale.data.fill_(0.02)
            scales = module.weight_scale.data.float().view(scales.shape)
            wide[f"{name}.weight"] = scales.repeat_interleave(outputs, 0).repeat_interleave(inputs, 1)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    stored = model.state_dict()
    return folder, {name: stored[name].float() * scales for name, scales in wide.items()}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"fmt": "e5m2"}, "fmt must be e4m3; got 'e5m2'"),
        ({"weight_block_size": [128]}, r"must be outputs and inputs of a block like \[128, 128\], inputs in 16s; got"),
        ({"weight_block_size": [128, 40]}, "inputs in 16s; got"),
        ({"activation_scheme": "sometimes"}, "must be dynamic or static"),
        ({"modules_to_not_convert": "lm_head"}, "must be a list of strings"),
        ({"modules_to_not_convert": ["re:("]}, "is no regular expression"),
        (
            {"modules_to_not_convert": ["k_proj"]},
            "layer 0: k_proj is left plain and the rest of q_proj, k_proj, v_proj",
        ),
    ],
)
def test_sections_that_cannot_hold(config: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        expected_shapes(spec_from_config(config | {"quantization_config": PLAIN_FP8 | more}))


COMPRESSED_GROUP: dict[str, Any] = {
    "targets": ["Linear"],
    "weights": {"type": "float", "num_bits": 8, "strategy": "channel"},
}


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({}, "config_groups must have one group"),
        ({"a": COMPRESSED_GROUP, "b": COMPRESSED_GROUP}, "config_groups must have one group"),
        ({"a": COMPRESSED_GROUP | {"weights": None}}, "weights must be an object; it is missing"),
        ({"a": COMPRESSED_GROUP | {"weights": {"type": "int"}}}, "type must be float in a float-quantized checkpoint"),
        ({"a": COMPRESSED_GROUP | {"weights": {"num_bits": 4}}}, "num_bits must be 8"),
        (
            {"a": COMPRESSED_GROUP | {"weights": {"strategy": "group"}}},
            "must be tensor, channel or block for FP8 weights",
        ),
        (
            {"a": COMPRESSED_GROUP | {"input_activations": {"dynamic": False, "strategy": "channel"}}},
            "must be tensor for",
        ),
    ],
)
def test_compressed_sections_that_cannot_hold(config: dict[str, Any], groups: dict[str, Any], said: str) -> None:
    section = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    with pytest.raises(ModelLoadError, match=said):
        spec_from_config(config | {"quantization_config": section})


def test_targets_and_ignored_modules_are_named_as_their_tools_do(config: dict[str, Any]) -> None:
    def plain_products(**more: Any) -> set[str]:
        section = {"quant_method": "compressed-tensors", "format": "float-quantized", **more}
        spec = spec_from_config(config | {"quantization_config": section})
        schemes = [layer_schemes(spec, layer) for layer in range(2)]
        return {
            f"{layer}.{name}" for layer, one in enumerate(schemes) for name, scheme in one.items() if scheme is None
        }

    groups = {"group_0": COMPRESSED_GROUP}
    assert plain_products(config_groups=groups) == set()
    assert plain_products(config_groups=groups, ignore=["lm_head", "model.layers.1.mlp.down_proj"]) == {"1.down_proj"}
    assert plain_products(config_groups=groups, ignore=["re:.*o_proj$"]) == {"0.o_proj", "1.o_proj"}
    assert plain_products(config_groups=groups, ignore=["model.layers.1.mlp"]) == {
        "1.gate_proj",
        "1.up_proj",
        "1.down_proj",
    }
    only_down = {"group_0": COMPRESSED_GROUP | {"targets": ["re:.*down_proj"]}}
    assert len(plain_products(config_groups=only_down)) == 12


def test_files_that_are_not_what_they_say(plain: Tensors, save_folder: Save) -> None:
    stored, _ = quantised(plain, "weight_scale_inv", (16, 32))
    folder = save_folder(stored | {f"{NAME}.weight": plain[f"{NAME}.weight"]}, quantization_config=BLOCK)
    with pytest.raises(ModelLoadError, match=rf"{NAME}\.weight is stored as BF16; known types: F8_E4M3"):
        open_checkpoint(folder)
    folder = save_folder(
        {name: t for name, t in stored.items() if name != f"{NAME}.weight_scale_inv"}, quantization_config=BLOCK
    )
    with pytest.raises(ModelLoadError, match=r"weight_scale_inv\) missing"):
        open_checkpoint(folder)
    folder = save_folder(stored | {f"{NAME}.weight_scale_inv": torch.ones(4, 4)}, quantization_config=BLOCK)
    with pytest.raises(ModelLoadError, match=r"has shape \[4, 4\], the configuration asks for \[4, 3\]"):
        open_checkpoint(folder)
    with pytest.raises(ModelLoadError, match=r"F8_E4M3; known types: BF16, .*, as the configuration leaves it plain"):
        open_checkpoint(save_folder(stored))
    head = stored["lm_head.weight"].to(E4M3)
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight is stored as F8_E4M3"):
        open_checkpoint(save_folder(stored | {"lm_head.weight": head}, quantization_config=BLOCK))


def test_what_a_model_takes_and_dummy_weights(plain: Tensors, save_folder: Save) -> None:
    stored, _ = quantised(plain, "weight_scale_inv", (16, 32))
    folder = save_folder(stored, quantization_config=BLOCK)
    checkpoint, dummy = open_checkpoint(folder), open_checkpoint(folder, "dummy", seed=3)

    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    assert kept_bytes(checkpoint.spec, torch.bfloat16, torch.device("cuda")) == num_bytes
    assert kept_bytes(checkpoint.spec, torch.bfloat16, CPU) == checkpoint.spec.num_parameters * 2
    made = dict(dummy.tensors(torch.bfloat16, CPU))
    assert {n: (t.shape, t.dtype) for n, t in made.items() if "norm" not in n and "scale" not in n} == {
        n: (t.shape, t.dtype) for n, t in stored.items() if "norm" not in n and "scale" not in n
    }
    again = dict(open_checkpoint(folder, "dummy", seed=3).tensors(torch.bfloat16, CPU))
    assert all(torch.equal(tensor.view(torch.uint8), again[name].view(torch.uint8)) for name, tensor in made.items())
    x = torch.randn(4, 64)
    down = loaded(dummy)._layers[0].mlp.down(torch.randn(4, 96))
    assert 0.5 < down.std().item() < 2
    assert 0.5 < loaded(dummy)._layers[0].attention.qkv(x).std().item() < 2


def test_weights_quantised_here_take_embedding_and_head_with_them(plain: Tensors, save_folder: Save) -> None:
    checkpoint = open_checkpoint(save_folder(plain, tie_word_embeddings=False))
    asked = replace(checkpoint, spec=replace(checkpoint.spec, quantization=MADE_HERE["fp8"]))
    x = torch.randn(3, 64)

    decoder = loaded(asked)

    right = x @ plain["lm_head.weight"].float().T
    assert 0.001 < ((decoder.logits(x) - right).norm() / right.norm()).item() < 0.01
    embedded, right = decoder._embedding(torch.arange(5)), plain["model.embed_tokens.weight"][:5].float()
    assert 0.001 < ((embedded - right).norm() / right.norm()).item() < 0.01
    card, spec = torch.device("cuda"), checkpoint.spec
    tied = replace(spec, has_tied_head=True)
    saved, saved_tied = (
        kept_bytes(one, torch.bfloat16, card)
        - kept_bytes(replace(one, quantization=MADE_HERE["fp8"]), torch.bfloat16, card)
        for one in (spec, tied)
    )
    assert saved - saved_tied == spec.vocab_size * (spec.hidden_size - 4)  # a byte a number less, a scale a row


def test_a_tied_head_multiplies_with_the_embeddings_own_rows(plain: Tensors, save_folder: Save) -> None:
    tied = {name: tensor for name, tensor in plain.items() if name != "lm_head.weight"}
    checkpoint = open_checkpoint(save_folder(tied, tie_word_embeddings=True))
    asked = replace(checkpoint, spec=replace(checkpoint.spec, quantization=MADE_HERE["fp8"]))
    x = torch.randn(3, 64)
    decoder = loaded(asked)
    rows = decoder._embedding(torch.arange(checkpoint.spec.vocab_size))
    torch.testing.assert_close(decoder.logits(x), x @ rows.T)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_checkpoint_by_block_gets_its_plain_tables_rounded_where_that_is_asked(
    is_tied: bool, plain: Tensors, save_folder: Save
) -> None:
    stored, _ = quantised(plain, "weight_scale_inv", (16, 32))
    if is_tied:
        del stored["lm_head.weight"]
    checkpoint = open_checkpoint(save_folder(stored, quantization_config=BLOCK, tie_word_embeddings=is_tied))
    assert checkpoint.spec.quantization is not None and not checkpoint.spec.quantization.has_int8_tables
    rounded = replace(checkpoint.spec.quantization, has_int8_tables=True)
    asked = replace(checkpoint, spec=replace(checkpoint.spec, quantization=rounded))
    as_it_is, decoder = loaded(checkpoint), loaded(asked)
    x, ids = torch.randn(3, 64), torch.arange(checkpoint.spec.vocab_size)

    got, right = decoder.logits(x), as_it_is.logits(x)
    assert 0.001 < ((got - right).norm() / right.norm()).item() < 0.01
    assert torch.equal(as_it_is._embedding(ids), plain["model.embed_tokens.weight"].float())
    assert not torch.equal(decoder._embedding(ids), as_it_is._embedding(ids))
    torch.testing.assert_close(
        decoder._layers[0].mlp.down(torch.ones(1, 96)), as_it_is._layers[0].mlp.down(torch.ones(1, 96))
    )


def test_a_gguf_file_may_become_fp8_too(tiny_gguf: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(tiny_gguf())
    asked = replace(checkpoint, spec=replace(checkpoint.spec, quantization=MADE_HERE["fp8"]))

    assert asked.kept_packed(torch.bfloat16, CPU) is asked
    decoder = loaded(asked)
    plain = dict(checkpoint.tensors(torch.float32))["model.layers.0.self_attn.o_proj.weight"]
    x = torch.randn(3, 64)
    got, right = decoder._layers[0].attention.out(x), x @ plain.T
    assert 0.001 < ((got - right).norm() / right.norm()).item() < 0.04
