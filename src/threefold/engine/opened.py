"""What is known of an engine before any weight is read: the model's files, the device, the limits that hold.

Knows nothing about memory or steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from threefold.config import EngineConfig, ModelConfig
from threefold.engine.draft_pair import OpenedDraft, open_draft
from threefold.engine.resolve import Facts, Limits, resolve_limits
from threefold.errors import ConfigError
from threefold.kernels.int8 import keeps_int8
from threefold.kernels.kv import FP8
from threefold.kernels.linear import preferred_cpu_dtype
from threefold.models.checkpoint import DTYPES, Checkpoint, open_checkpoint
from threefold.models.kv_scales import checkpoint_kv_scales
from threefold.models.locate import locate_model
from threefold.models.quantization import MADE_HERE
from threefold.models.shapes import kept_bytes
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
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are stored in."""
        return FP8 if self.limits.kv_cache_dtype != self.limits.dtype else self.dtype

    @property
    def model_name(self) -> str:
        """As the operator called it."""
        return self.config.model.model or DEFAULT_MODEL_NAME


def open_engine(config: EngineConfig) -> Opened:
    """Find the model and its draft model, the device, and the limits that hold.

    Raises:
        OperatorError: a file, a device or a setting is not what it should be.
    """
    model = config.model
    _check_generation_config(model.generation_config)
    checkpoint = open_checkpoint(locate_model(model.model, model.revision), model.load_format, model.seed)
    checkpoint = quantised_as_asked(checkpoint, model.quantization)
    device = open_device(config.device.device, config.device.num_threads)
    _check_card(checkpoint, device)
    facts = Facts(
        max_positions=checkpoint.spec.max_positions,
        checkpoint_dtype=checkpoint.spec.dtype,
        is_gpu=device.is_gpu,
        num_devices=num_devices(device),
        preferred_cpu_dtype=_cpu_dtype(config, device),
        supports_fp8=device.supports_fp8,
        has_kv_scales=_has_kv_scales(config, checkpoint),
    )
    draft = open_draft(config, checkpoint, config.model.model or DEFAULT_MODEL_NAME)
    if draft is not None:
        _check_card(draft.checkpoint, device)
    limits = resolve_limits(config, facts)
    as_used = DTYPES[limits.dtype], device.torch_device
    if draft is not None:
        draft = replace(draft, checkpoint=as_kept(draft.checkpoint, model, *as_used))
    return Opened(config, as_kept(checkpoint, model, *as_used), device, limits, draft)


def as_kept(checkpoint: Checkpoint, asked: ModelConfig, dtype: torch.dtype, device: torch.device) -> Checkpoint:
    """The checkpoint with everything in the form in which it stays in memory."""
    quantization = checkpoint.spec.quantization
    if quantization is None:
        return checkpoint.kept_packed(dtype, device)
    has_quantised = quantization.is_made_here or keeps_int8(dtype, device)
    tables = replace(quantization, has_int8_tables=has_quantised and asked.quantize_embeddings == "auto")
    return replace(checkpoint, spec=replace(checkpoint.spec, quantization=tables))


def quantised_as_asked(checkpoint: Checkpoint, asked: str | None) -> Checkpoint:
    """The checkpoint with the quantisation that it has, or is to be given while it is loaded.

    Raises:
        ConfigError: another one was asked for, or one that a plain checkpoint cannot be given.
    """
    stored = checkpoint.spec.quantization
    if asked is None or asked in stored_kinds(checkpoint):
        return checkpoint
    if stored is not None:
        raise ConfigError(
            f"--quantization {asked}: the checkpoint is quantised already, as {stored.kind} ({stored.source}); leave "
            "the flag out"
        )
    if asked not in MADE_HERE:
        raise ConfigError(
            f"--quantization {asked} needs a checkpoint that is stored so, and {checkpoint.path} is not; "
            f"{', '.join(MADE_HERE)} can be made while loading"
        )
    return replace(checkpoint, spec=replace(checkpoint.spec, quantization=MADE_HERE[asked]))


def stored_kinds(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What `--quantization` may say of a checkpoint as it is: its kind, and the word that its own tool has for it."""
    stored = checkpoint.spec.quantization
    own = () if stored is None else (stored.kind, stored.source.split()[0])
    return (*own, "gguf") if checkpoint.storage.startswith("GGUF") else own


def _check_generation_config(asked: str) -> None:
    if asked not in ("auto", "vllm") and not (Path(asked) / "generation_config.json").is_file():
        raise ConfigError(
            f"--generation-config {asked}: there is no folder of this name with a generation_config.json; use auto, "
            "vllm, or a folder that has one"
        )


def _check_card(checkpoint: Checkpoint, device: Device) -> None:
    quantization = checkpoint.spec.quantization
    if quantization is not None and quantization.kind == "fp8" and device.is_gpu and not device.supports_fp8:
        raise ConfigError(
            f"fp8 weights ({quantization.source}): this card has no FP8 numbers, which come with compute capability "
            "8.9; use the unquantised model"
        )


def _cpu_dtype(config: EngineConfig, device: Device) -> str:
    if device.is_gpu or config.model.dtype != "auto":
        return "float32"
    return str(preferred_cpu_dtype()).removeprefix("torch.")


def _has_kv_scales(config: EngineConfig, checkpoint: Checkpoint) -> bool:
    is_asked = config.cache.kv_cache_dtype != "auto"
    return is_asked and checkpoint_kv_scales(checkpoint.source, checkpoint.spec.num_layers) is not None


def weights_bytes(opened: Opened) -> int:
    """What the weights of the model and its draft model take on the device."""
    specs = [opened.spec, *([opened.draft.checkpoint.spec] if opened.draft is not None else [])]
    return sum(kept_bytes(spec, opened.dtype, opened.device.torch_device) for spec in specs)


def calibration_limits(opened: Opened, num_blocks: int) -> CalibrationLimits:
    """The shapes that trial passes may have."""
    return CalibrationLimits(
        num_blocks=num_blocks,
        block_size=opened.config.cache.block_size,
        max_num_seqs=opened.limits.max_num_seqs,
        max_num_batched_tokens=opened.limits.max_num_batched_tokens,
        max_model_len=opened.limits.max_model_len,
        vocab_size=opened.spec.vocab_size,
    )
