"""How checkpoints say that they are FP8 (e4m3): three wordings, one result.

Knows nothing about products. Others than e4m3, and fixed forms that no product here has, are refused by name.
"""

from __future__ import annotations

from typing import Literal

from threefold.layers.fp8 import Fp8WhileLoading, StoredFp8
from threefold.layers.quant import QuantScheme
from threefold.models.fields import Fields
from threefold.models.spec import Quantization

_EIGHT = 8
_FLOAT8 = "e4m3"
_LEAST_BLOCK_INPUTS = 16
"""That products on a card take at a time."""


def fp8_scheme(quantization: Quantization) -> QuantScheme:
    """The scheme of a product of an FP8 checkpoint, or of a plain one that becomes FP8 while it is loaded."""
    if quantization.is_made_here:
        return Fp8WhileLoading()
    return StoredFp8(
        quantization.scale_name,
        quantization.strategy,
        quantization.block_size,
        quantization.has_input_scales,
        quantization.input_bound,
    )


def read_plain_fp8(section: Fields) -> Quantization:
    """`fp8`: one scale a matrix, or a block (Qwen, DeepSeek) under the name weight_scale_inv.

    Raises:
        ModelLoadError: a field that cannot hold.
    """
    if section.text("fmt", _FLOAT8) not in (_FLOAT8, "float8_e4m3fn"):
        raise section.fault("fmt", f"must be {_FLOAT8}")
    ignored = section.strings("modules_to_not_convert") + section.strings("ignored_layers")
    if not section.has("weight_block_size"):
        return Quantization("fp8", "fp8", strategy="tensor", has_input_scales=_is_static(section), ignored=ignored)
    return Quantization(
        "fp8",
        "fp8 by block",
        strategy="block",
        block_size=_block(section, "weight_block_size"),
        scale_name="weight_scale_inv",
        ignored=ignored,
    )


def read_fbgemm_fp8(section: Fields) -> Quantization:
    """`fbgemm_fp8`: a scale an output; activations cut at a bound.

    Raises:
        ModelLoadError: a field that cannot hold.
    """
    return Quantization(
        "fp8",
        "fbgemm_fp8",
        input_bound=section.number("activation_scale_ub") if section.has("activation_scale_ub") else None,
        ignored=section.strings("modules_to_not_convert"),
    )


def read_compressed_fp8(section: Fields) -> Quantization:
    """compressed-tensors, float-quantized: one group of modules with eight-bit floats.

    Raises:
        ModelLoadError: several groups, other numbers, or a strategy that is not built.
    """
    group = _only_group(section)
    weights = group.section("weights")
    if weights is None:
        raise group.fault("weights", "must be an object")
    _check_float8(weights)
    strategy = weights.text("strategy", "tensor")
    if strategy not in ("tensor", "channel", "block"):
        raise weights.fault("strategy", "must be tensor, channel or block for FP8 weights")
    return Quantization(
        "fp8",
        f"compressed-tensors float-quantized by {strategy}",
        strategy=_strategy(strategy),
        block_size=_block(weights, "block_structure") if strategy == "block" else (0, 0),
        has_input_scales=_has_input_scales(group),
        targets=group.strings("targets"),
        ignored=section.strings("ignore"),
    )


def _strategy(name: str) -> Literal["tensor", "channel", "block"]:
    return "block" if name == "block" else "channel" if name == "channel" else "tensor"


def _block(fields: Fields, name: str) -> tuple[int, int]:
    sizes = fields.integers(name)
    if len(sizes) != len(("outputs", "inputs")) or 0 in sizes or sizes[1] % _LEAST_BLOCK_INPUTS:
        raise fields.fault(
            name, f"must be outputs and inputs of a block like [128, 128], inputs in {_LEAST_BLOCK_INPUTS}s"
        )
    return sizes[0], sizes[1]


def _is_static(section: Fields) -> bool:
    scheme = section.text("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise section.fault("activation_scheme", "must be dynamic or static")
    return scheme == "static"


def _only_group(section: Fields) -> Fields:
    groups = section.section("config_groups")
    if groups is None or len(groups.values) != 1:
        raise section.fault("config_groups", "must have one group: products quantised in two ways are not supported")
    group = groups.section(next(iter(groups.values)))
    if group is None:
        raise section.fault("config_groups", "must hold an object")
    return group


def _check_float8(fields: Fields) -> None:
    if fields.text("type", "float") != "float":
        raise fields.fault("type", "must be float in a float-quantized checkpoint")
    if fields.integer("num_bits", _EIGHT) != _EIGHT:
        raise fields.fault("num_bits", "must be 8 in a float-quantized checkpoint")


def _has_input_scales(group: Fields) -> bool:
    """True for fixed scales a product; activations scaled as they come are scaled token by token."""
    inputs = group.section("input_activations")
    if inputs is None:
        return False
    _check_float8(inputs)
    if inputs.values.get("dynamic") in (True, "local"):
        return False
    if inputs.text("strategy", "tensor") != "tensor":
        raise inputs.fault("strategy", "must be tensor for activations with fixed scales")
    return True
