"""What is known of an engine before any weight is read: the model's files, the device, the limits that hold.

Knows nothing about memory or steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from threefold.config import EngineConfig
from threefold.engine.draft_pair import OpenedDraft, open_draft
from threefold.engine.resolve import Facts, Limits, resolve_limits
from threefold.errors import ConfigError
from threefold.kernels.linear import preferred_cpu_dtype
from threefold.models.checkpoint import DTYPES, Checkpoint, open_checkpoint
from threefold.models.locate import locate_model
from threefold.models.spec import ModelSpec
from threefold.runner.calibrate import CalibrationLimits
from threefold.runner.device import Device, num_devices, open_device

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class Opened:
    """What is known before any weight is read."""

    config: EngineConfig
    checkpoint: Checkpoint
    device: Device
    limits: Limits
    draft: OpenedDraft | None

    @property
    def spec(self) -> ModelSpec:
        """The model's shape."""
        return self.checkpoint.spec

    @property
    def dtype(self) -> torch.dtype:
        """What weights and activations are in."""
        return DTYPES[self.limits.dtype]

    @property
    def model_name(self) -> str:
        """As the operator called it."""
        return self.config.model.model or DEFAULT_MODEL_NAME


def open_engine(config: EngineConfig) -> Opened:
    """Find the model and its draft model, the device, and the limits that hold.

    Raises:
        OperatorError: a file, a device or a setting is not what it should be.
    """
    _refuse_what_is_not_built(config)
    checkpoint = open_checkpoint(
        locate_model(config.model.model, config.model.revision), config.model.load_format, config.model.seed
    )
    device = open_device(config.device.device, config.device.num_threads)
    facts = Facts(
        max_positions=checkpoint.spec.max_positions,
        checkpoint_dtype=checkpoint.spec.dtype,
        is_gpu=device.is_gpu,
        num_devices=num_devices(device),
        preferred_cpu_dtype=_cpu_dtype(config, device),
    )
    draft = open_draft(config, checkpoint, config.model.model or DEFAULT_MODEL_NAME)
    return Opened(config, checkpoint, device, resolve_limits(config, facts), draft)


def _refuse_what_is_not_built(config: EngineConfig) -> None:
    if config.model.quantization is not None:
        raise ConfigError(f"--quantization {config.model.quantization} is not built in Threefold yet; leave it out")
    if config.cache.kv_cache_dtype != "auto":
        raise ConfigError(f"--kv-cache-dtype {config.cache.kv_cache_dtype} is not built in Threefold yet; use auto")


def _cpu_dtype(config: EngineConfig, device: Device) -> str:
    if device.is_gpu or config.model.dtype != "auto":
        return "float32"
    return str(preferred_cpu_dtype()).removeprefix("torch.")


def num_parameters(opened: Opened) -> int:
    """Weights of the model and its draft model."""
    draft = opened.draft.checkpoint.spec.num_parameters if opened.draft is not None else 0
    return opened.spec.num_parameters + draft


def calibration_limits(opened: Opened, num_blocks: int) -> CalibrationLimits:
    """The shapes that trial passes may have."""
    return CalibrationLimits(
        num_blocks=num_blocks,
        block_size=opened.config.cache.block_size,
        max_num_seqs=opened.limits.max_num_seqs,
        max_num_batched_tokens=opened.limits.max_num_batched_tokens,
        max_model_len=opened.limits.max_model_len,
    )
