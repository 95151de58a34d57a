"""A model to FP8: e4m3 weights with a scale an output, activations quantised as they come, no calibration.

The folder is of the kind that compressed-tensors calls float-quantized, which other engines read as well. The numbers
are those of `--quantization fp8`; written down they load in half the time and need half the disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from threefold.kernels.fp8 import quantise_outputs
from threefold.models.checkpoint import DTYPES
from threefold.models.fields import read_json_object
from threefold.quantize.shards import ShardWriter
from threefold.quantize.source import PRODUCT, Source

FP8_CONFIG: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False,
                "group_size": None, "block_structure": None, "actorder": None, "observer": "minmax",
                "observer_kwargs": {},
            },
            "input_activations": {
                "num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True,
                "group_size": None, "block_structure": None, "actorder": None, "observer": None,
                "observer_kwargs": {},
            },
            "output_activations": None,
        }
    },
}  # fmt: skip


def write_fp8(source: Source, folder: Path, tell: Callable[[int, int], None]) -> int:
    """Write the quantised model into an empty folder.

    Args:
        source: the model.
        folder: exists.
        tell: told the tensors done, and of how many.

    Returns:
        Bytes of the weights.

    Raises:
        ConfigError: the folder cannot be written.
        ModelLoadError: the model became unreadable.
    """
    writer = ShardWriter(folder)
    num_tensors = len(source.products())
    num_done = 0
    for name, tensor in source.checkpoint.tensors(DTYPES[source.checkpoint.spec.dtype]):
        if not PRODUCT.fullmatch(name):
            writer.add(name, tensor.clone())  # it may be a view of a file that goes away
            continue
        values, scales = _quantised(tensor)
        writer.add(name, values)
        writer.add(f"{name}_scale", scales)
        num_done += 1
        tell(num_done, num_tensors)
    config = read_json_object(source.folder / "config.json") | {"quantization_config": FP8_CONFIG}
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
    source.copy_companions(folder)
    return writer.finish()


def _quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] e4m3 and [out, 1] float32."""
    quantised = quantise_outputs(weight)
    return quantised.values, quantised.scales.unsqueeze(1)
