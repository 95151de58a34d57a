"""A model to 4-bit weights by AWQ (Lin et al., arXiv 2306.00978), which llm-compressor computes.

The library is an extra: it holds transformers within a range of its own, so an environment of its own is best. What it
writes is the compressed-tensors kind pack-quantized, with zero points.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from threefold.errors import ConfigError
from threefold.quality.documents import Piece
from threefold.quantize.source import Source
from threefold.runner.device import Device


def check_can_run(device: Device) -> None:
    """Refuse the scheme where it cannot run.

    Raises:
        ConfigError: with what would work.
    """
    if find_spec("llmcompressor") is None:
        raise ConfigError(
            "--scheme awq needs llm-compressor, which is not installed: pip install 'threefold[quantize]', best in an "
            "environment of its own, since it needs an older transformers; --scheme fp8 needs nothing more"
        )
    if not device.is_gpu:
        raise ConfigError(
            "--scheme awq needs a card: llm-compressor's search holds its activations in pinned memory, which a CPU "
            "alone does not have; --scheme fp8 runs on a CPU"
        )


def write_awq(source: Source, folder: Path, pieces: Sequence[Piece], device: torch.device) -> int:
    """Calibrate, quantise and write into an empty folder; the library shows its own progress.

    Args:
        source: the model.
        folder: exists.
        pieces: text that is run through the model.
        device: where.

    Returns:
        Bytes of the weights.

    Raises:
        ConfigError: groups do not divide the model's products.
    """
    from llmcompressor import oneshot
    from llmcompressor.core import reset_session
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from transformers import AutoModelForCausalLM

    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": source.group_size()}
    scheme = {"group_0": {"targets": ["Linear"], "weights": weights}}
    recipe = [AWQModifier(), QuantizationModifier(config_groups=scheme, ignore=["lm_head"])]
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype="auto", trust_remote_code=False).to(device)
    oneshot(model=model, dataset=_loader(pieces), recipe=recipe, num_calibration_samples=len(pieces))
    model.save_pretrained(folder, save_compressed=True)
    source.copy_companions(folder)
    reset_session()  # which would keep the model in memory beside what the check loads
    del model
    gc.collect()
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _loader(pieces: Sequence[Piece]) -> torch.utils.data.DataLoader[dict[str, torch.Tensor]]:
    """One piece a batch: nothing is padded."""
    rows = [{"input_ids": torch.tensor(piece.token_ids)} for piece in pieces]
    rows = [{**row, "attention_mask": torch.ones_like(row["input_ids"])} for row in rows]
    return torch.utils.data.DataLoader(rows, batch_size=1)  # type: ignore[arg-type]
