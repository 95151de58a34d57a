"""Flags of `bench dummy`, and what they come to. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from threefold.flags.flag import Flag
from threefold.flags.values import choice, none_or

QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 128, "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
            }
        },
        "ignore": ["lm_head"],
    },
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}
"""What config.json says of the kinds of checkpoints, as those of the Qwen3 models do."""


@dataclass(frozen=True, slots=True)
class DummyOptions:
    """What is written beside the shape."""

    quantization: str | None = None
    """Key of QUANTIZATIONS: the checkpoint is said to be stored so; None = plain."""


DUMMY_FLAGS = (
    Flag("quantization", "dummy.quantization", none_or(choice("none", *QUANTIZATIONS), "none"),
         f"the checkpoint is said to be stored so: {', '.join(QUANTIZATIONS)}; none = plain (none)", metavar="KIND"),
)  # fmt: skip
