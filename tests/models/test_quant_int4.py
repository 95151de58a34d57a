"""Checkpoints of four-bit weights: what their configuration says, and that they load as what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.layers.attention import allocate_kv
from threefold.layers.batch import Batch
from threefold.models.checkpoint import open_checkpoint
from threefold.models.decoder import Decoder
from threefold.models.fields import Fields
from threefold.models.quant_int4 import read_awq, read_gptq, read_packed_int4
from threefold.models.registry import spec_from_config
from threefold.models.shapes import expected_shapes

GROUP = 32
PACKED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False}
SECTIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4, "group_size": GROUP},
    "desc_act": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": PACKED, "input_activations": None}},
        "ignore": ["lm_head"],
    },
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """[..., 8 n] -> int32 [..., n]; the i-th four bits from below are number order[i]."""
    eights = numbers.long().unflatten(-1, (-1, 8))
    packed = sum(eights[..., number] << (4 * place) for place, number in enumerate(order))
    return (packed - (packed >> 31 << 32)).to(torch.int32).contiguous()


def stored(kind: str, values: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    """One product's tensors, from [out, in] values and [out, groups] zeros and scales."""
    num_inputs = values.shape[1]
    if kind == "awq":
        qzeros = words(zeros.T, AWQ_ORDER)
        return {"qweight": words(values.T, AWQ_ORDER), "qzeros": qzeros, "scales": scales.T.contiguous()}
    if kind == "compressed-tensors":
        return {
            "weight_packed": words(values),
            "weight_scale": scales,
            "weight_zero_point": words(zeros.T).T.contiguous(),
            "weight_shape": torch.tensor(values.shape),
        }
    offset = 0 if kind == "gptq_v2" else 1
    return {
        "qweight": words(values).T.contiguous(),
        "qzeros": words((zeros.T - offset) & 15),
        "scales": scales.T.contiguous(),
        "g_idx": (torch.arange(num_inputs) // GROUP).to(torch.int32),
        "bias": torch.zeros(len(values)).half(),
    }


def quantised(kind: str, config: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A random checkpoint's tensors as they are stored, and the plain weights that they mean."""
    torch.manual_seed(5)
    packed, plain = {}, {}
    for name, shape in expected_shapes(spec_from_config(config)).items():
        if not name.endswith("_proj.weight"):
            packed[name] = plain[name] = torch.randn(shape)
            continue
        values = torch.randint(0, 16, shape)
        zeros = torch.randint(0, 16, (shape[0], shape[1] // GROUP))
        scales = ((torch.rand(zeros.shape) + 0.5) / 64).half()
        each = values - zeros.repeat_interleave(GROUP, dim=1)
        plain[name] = each * scales.float().repeat_interleave(GROUP, dim=1)
        for suffix, tensor in stored(kind, values, zeros, scales).items():
            packed[f"{name.removesuffix('weight')}{suffix}"] = tensor
    return packed, plain


def logits_of(folder: Path) -> torch.Tensor:
    """Of a few tokens, in float32."""
    checkpoint = open_checkpoint(folder)
    decoder = Decoder(checkpoint.spec, torch.float32, torch.device("cpu"))
    decoder.load(checkpoint.tensors(torch.float32))
    kv = allocate_kv(checkpoint.spec, 4, 16, torch.float32, torch.device("cpu"))
    num = 5
    batch = Batch(
        token_ids=torch.arange(num) + 3,
        positions=torch.arange(num),
        slots=torch.arange(num) + 16,
        row_starts=torch.tensor([0, num], dtype=torch.int32),
        context_lens=torch.tensor([num], dtype=torch.int32),
        block_tables=torch.tensor([[1, 2]], dtype=torch.int32),
        logit_tokens=torch.arange(num),
        max_new=num,
        max_context=num,
    )
    return decoder.logits(decoder.forward(batch, kv))


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@pytest.mark.parametrize("kind", SECTIONS)
def test_a_checkpoint_answers_as_the_weights_that_it_means(
    kind: str, family: str, config: dict[str, Any], save_folder: Callable[..., Path]
) -> None:
    """Qwen2 has biases on q, k and v, which are no zeros."""
    config["architectures"] = [f"{family}ForCausalLM"]
    packed, plain = quantised(kind, config)

    right = logits_of(save_folder(plain))
    got = logits_of(save_folder(packed, quantization_config=SECTIONS[kind], torch_dtype="float16"))

    assert right.abs().max() > 1
    torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-3 * float(right.abs().max()))


@pytest.mark.parametrize(
    ("kind", "gone"),
    [("awq", "qzeros"), ("awq", "scales"), ("gptq", "qzeros"), ("desc_act", "g_idx"), ("gptq", "qweight"),
     ("compressed-tensors", "weight_scale"), ("compressed-tensors", "weight_zero_point")],
)  # fmt: skip
def test_what_is_missing_is_named(
    kind: str, gone: str, config: dict[str, Any], save_folder: Callable[..., Path]
) -> None:
    packed, _ = quantised(kind, config)
    name = f"model.layers.1.mlp.up_proj.{gone}"
    del packed[name]

    with pytest.raises(ModelLoadError, match=f"1 tensors \\({name}\\) missing"):
        open_checkpoint(save_folder(packed, quantization_config=SECTIONS[kind]))


def test_a_group_size_other_than_the_configured_one(config: dict[str, Any], save_folder: Callable[..., Path]) -> None:
    packed, _ = quantised("awq", config)

    with pytest.raises(
        ModelLoadError, match=r"q_proj.scales has shape \[2, 64\], the configuration asks for \[1, 64\]"
    ):
        open_checkpoint(save_folder(packed, quantization_config=SECTIONS["awq"] | {"group_size": 64}))


@pytest.mark.parametrize("kind", [kind for kind in SECTIONS if kind != "desc_act"])
def test_dummy_weights_have_the_variance_of_plain_ones(
    kind: str, config: dict[str, Any], save_folder: Callable[..., Path]
) -> None:
    checkpoint = open_checkpoint(save_folder({}, quantization_config=SECTIONS[kind]), "dummy")
    decoder = Decoder(checkpoint.spec, torch.float32, torch.device("cpu"))
    decoder.load(checkpoint.tensors(torch.float32))

    out = decoder._layers[0].mlp.down(torch.eye(config["intermediate_size"]))

    assert out.var().item() * config["intermediate_size"] == pytest.approx(1, rel=0.15)


BAD = {
    "awq": [
        ({"bits": 8}, "bits must be 4: integer weights of another width are not built; got 8"),
        ({"version": "gemv"}, "version must be gemm"),
        ({"group_size": 48}, "group_size must be 32, 64 or 128, or -1 for one group an output; got 48"),
        ({"group_size": 256}, "group_size must be 32, 64 or 128"),
        ({"group_size": 0}, "group_size must be 32, 64 or 128"),
        ({"group_size": "128"}, "group_size must be a whole number"),
        ({"zero_point": 1}, "zero_point must be true or false"),
    ],
    "gptq": [
        ({"bits": 3}, "bits must be 4"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format must be gptq or gptq_v2; got 'marlin'"),
        ({"dynamic": {"-:.*k_proj": {}}}, "dynamic must be empty"),
        ({"desc_act": "no"}, "desc_act must be true or false"),
    ],
}
BAD_WEIGHTS = [
    ({"num_bits": 8}, "num_bits must be 4"),
    ({"type": "float"}, "type must be int"),
    ({"strategy": "tensor"}, "strategy must be group or channel"),
    ({"group_size": 16}, "group_size must be 32, 64 or 128"),
    ({"actorder": "sorted"}, "actorder must be null, weight, static or group"),
]


@pytest.mark.parametrize(("change", "words"), BAD["awq"])
def test_awq_that_cannot_hold(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        read_awq(Fields(SECTIONS["awq"] | change, "config.json: quantization_config"))


@pytest.mark.parametrize(("change", "words"), BAD["gptq"])
def test_gptq_that_cannot_hold(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        read_gptq(Fields(SECTIONS["gptq"] | change, "config.json: quantization_config"))


@pytest.mark.parametrize(("change", "words"), BAD_WEIGHTS)
def test_packed_weights_that_cannot_hold(change: dict[str, Any], words: str) -> None:
    group = {"targets": ["Linear"], "weights": PACKED | change}
    with pytest.raises(ModelLoadError, match=words):
        read_packed_int4(Fields({"config_groups": {"group_0": group}}, "config.json"))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "config_groups must have one group"),
        ({"config_groups": {"a": {}, "b": {}}}, "config_groups must have one group"),
        ({"config_groups": {"a": {}}}, "weights must be an object"),
        ({"config_groups": {"a": {"weights": PACKED, "input_activations": {"num_bits": 8}}}}, "plain activations"),
    ],
)
def test_groups_that_cannot_hold(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        read_packed_int4(Fields(section, "config.json"))


@pytest.mark.parametrize(
    ("weights", "group_size", "has_input_order"),
    [
        ({"strategy": "channel", "group_size": None}, 0, False),
        ({"strategy": None, "group_size": 64}, 64, False),
        ({"actorder": "weight"}, GROUP, False),
        ({"actorder": "group"}, GROUP, True),
        ({"actorder": True}, GROUP, True),
        ({"group_size": -1}, 0, False),
    ],
)
def test_how_packed_weights_are_grouped(weights: dict[str, Any], group_size: int, has_input_order: bool) -> None:
    group = {"targets": ["Linear"], "weights": PACKED | weights}

    read = read_packed_int4(Fields({"config_groups": {"group_0": group}, "ignore": ["lm_head"]}, "config.json"))

    assert (read.group_size, read.has_input_order) == (group_size, has_input_order)
    assert read.ignored == ("lm_head",)
