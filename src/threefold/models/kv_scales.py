"""Scales of an FP8 KV cache, as checkpoints bring them: one number for the keys and one for the values of each layer.

A key is what is stored times its scale. Names differ by the tool that wrote them; what they mean does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from threefold.errors import ModelLoadError
from threefold.models.shapes import KV_SCALE_NAME
from threefold.models.weights import SafetensorsWeights, WeightSource


class KVScales(NamedTuple):
    """Of one layer."""

    key: float
    value: float


def checkpoint_kv_scales(source: WeightSource, num_layers: int) -> list[KVScales] | None:
    """The scales that a checkpoint brings, layer by layer; None = it brings none.

    Raises:
        ModelLoadError: some layers have scales and others have not, or a scale is not one positive number.
    """
    if not isinstance(source, SafetensorsWeights):
        return None
    found = source.matching(KV_SCALE_NAME)
    return _by_layer(found, num_layers) if found else None


def _by_layer(tensors: Mapping[str, torch.Tensor], num_layers: int) -> list[KVScales]:
    scales: dict[tuple[int, str], float] = {}
    for name, tensor in tensors.items():
        match = KV_SCALE_NAME.fullmatch(name)
        assert match is not None, "asked for by this very pattern"
        scales[int(match["layer"]), match["scale"] or match["output"]] = _one_number(name, tensor)
    missing = [layer for layer in range(num_layers) if not {(layer, "k"), (layer, "v")} <= scales.keys()]
    if missing:
        raise ModelLoadError(
            f"the checkpoint has KV scales for some layers and lacks them for {len(missing)} of {num_layers}, "
            f"layer {missing[0]} first; use --kv-cache-dtype auto"
        )
    return [KVScales(scales[layer, "k"], scales[layer, "v"]) for layer in range(num_layers)]


def _one_number(name: str, tensor: torch.Tensor) -> float:
    number = float(tensor.float().flatten()[0]) if tensor.numel() == 1 else math.nan
    if not (0 < number < math.inf):
        shape = list(tensor.shape)
        raise ModelLoadError(f"{name}: a KV scale must be one positive number, this is {number:g} of shape {shape}")
    return number
