"""How checkpoints say that their weights have four bits: AWQ, GPTQ and compressed-tensors' pack-quantized.

Knows nothing about products. Other widths, groups and orders than those that are built are refused by name.
"""

from __future__ import annotations

from threefold.models.fields import Fields
from threefold.models.spec import Quantization

_BITS = 4
_GROUP_SIZES = (32, 64, 128)
_WHOLE = -1


def read_awq(section: Fields) -> Quantization:
    """`awq`, version gemm.

    Raises:
        ModelLoadError: a field that cannot hold, or a form that is not built.
    """
    _check_bits(section, "bits")
    if section.text("version", "gemm").lower() != "gemm":
        raise section.fault("version", "must be gemm, the form in which AWQ checkpoints are shared")
    return Quantization(
        "awq",
        "awq",
        strategy="group",
        bits=_BITS,
        group_size=_group_size(section, "group_size"),
        has_zero_points=section.boolean("zero_point", True),
        ignored=section.strings("modules_to_not_convert"),
    )


def read_gptq(section: Fields) -> Quantization:
    """`gptq` of the first form, or gptq_v2, as checkpoint_format says.

    Raises:
        ModelLoadError: a field that cannot hold, or a form that is not built.
    """
    _check_bits(section, "bits")
    form = section.text("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise section.fault("checkpoint_format", "must be gptq or gptq_v2")
    if section.has("dynamic") and section.values["dynamic"]:
        raise section.fault("dynamic", "must be empty: modules quantised in different ways are not supported")
    return Quantization(
        form,
        form,
        strategy="group",
        bits=_BITS,
        group_size=_group_size(section, "group_size"),
        has_zero_points=True,
        has_input_order=section.boolean("desc_act", False),
        redundant=(".g_idx", "_proj.bias"),  # biases of zeros, where the model has none
    )


def read_packed_int4(section: Fields) -> Quantization:
    """compressed-tensors, pack-quantized: one group of modules with integers of four bits.

    Raises:
        ModelLoadError: several groups, other numbers, quantised activations, or a strategy that is not built.
    """
    groups = section.section("config_groups")
    group = None if groups is None or len(groups.values) != 1 else groups.section(next(iter(groups.values)))
    if group is None:
        raise section.fault("config_groups", "must have one group: products quantised in two ways are not supported")
    weights = group.section("weights")
    if weights is None:
        raise group.fault("weights", "must be an object")
    if group.has("input_activations"):
        raise group.fault("input_activations", "must be null: four-bit weights are multiplied with plain activations")
    return _read_packed_weights(section, group, weights)


def _read_packed_weights(section: Fields, group: Fields, weights: Fields) -> Quantization:
    _check_bits(weights, "num_bits")
    if weights.text("type", "int") != "int":
        raise weights.fault("type", "must be int in a pack-quantized checkpoint")
    strategy = weights.text("strategy", "group" if weights.has("group_size") else "channel")
    if strategy not in ("group", "channel"):
        raise weights.fault("strategy", "must be group or channel for four-bit weights")
    is_by_group = strategy == "group"
    return Quantization(
        "packed_int4",
        f"compressed-tensors pack-quantized, {strategy}",
        strategy="group" if is_by_group else "channel",
        bits=_BITS,
        group_size=_group_size(weights, "group_size") if is_by_group else 0,
        has_zero_points=not weights.boolean("symmetric", True),
        has_input_order=_has_input_order(weights),
        targets=group.strings("targets"),
        ignored=section.strings("ignore"),
        redundant=(".weight_shape", ".weight_g_idx"),
    )


def _check_bits(section: Fields, name: str) -> None:
    if section.integer(name, _BITS) != _BITS:
        raise section.fault(name, "must be 4: integer weights of another width are not built")


def _group_size(section: Fields, name: str) -> int:
    """Inputs a group; 0 = all."""
    size = section.integer(name, 128, low=_WHOLE)
    if size == _WHOLE:
        return 0
    if size not in _GROUP_SIZES:
        raise section.fault(name, "must be 32, 64 or 128, or -1 for one group an output")
    return size


def _has_input_order(weights: Fields) -> bool:
    """True where groups may be mixed; weight and static reorder only while quantising."""
    order = weights.values.get("actorder")
    if isinstance(order, bool):
        return order
    if weights.text("actorder", "weight") not in ("weight", "static", "group", "dynamic"):
        raise weights.fault("actorder", "must be null, weight, static or group")
    return order in ("group", "dynamic")
