"""What an engine says of itself: every value that was decided with its reason, and what its text edge has to know.

Decides nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from threefold.engine.opened import Opened
from threefold.engine.outputs import EngineInfo
from threefold.engine.resolve import Reason
from threefold.kernels.fp8 import keeps_fp8
from threefold.models.checkpoint import read_generation_defaults
from threefold.models.shapes import kept_bytes
from threefold.runner.memory import MemoryPlan
from threefold.text.tokenizer import Tokenizer


def decided(opened: Opened, plan: MemoryPlan) -> list[Reason]:
    """What was decided; what the memory plan changed stands once, with the plan's reason."""
    spec, checkpoint = opened.spec, opened.checkpoint
    size = f"{spec.num_parameters / 1e6:,.0f} M parameters"
    stepped = {line.name: Reason(*line) for line in plan.lines}
    reasons = [
        Reason("model", opened.model_name, f"{spec.architecture}, {size}, {checkpoint.storage}"),
        *_quantised(opened),
        Reason("device", opened.device.name, "found" if opened.config.device.device == "auto" else "as asked"),
        *(stepped.pop(reason.name, reason) for reason in opened.limits.reasons),
        *stepped.values(),
    ]
    prefix = "on" if opened.config.cache.enable_prefix_caching else "off"
    return [*reasons, Reason("prefix caching", prefix, "default" if prefix == "on" else "as asked")]


def _quantised(opened: Opened) -> list[Reason]:
    quantization = opened.spec.quantization
    if quantization is None:
        return []
    why = quantization.source
    if quantization.kind == "fp8" and not keeps_fp8(opened.dtype, opened.device.torch_device):
        why += f"; weights become {opened.limits.dtype} when they are loaded, as here nothing multiplies FP8 faster"
    if quantization.has_int8_tables:
        why += "; embedding and head int8, a scale a row"
    return [Reason("quantization", quantization.kind, f"{why}; {_weights(opened)}")]


def _weights(opened: Opened) -> str:
    where = opened.dtype, opened.device.torch_device
    taken, plain = (kept_bytes(spec, *where) for spec in (opened.spec, replace(opened.spec, quantization=None)))
    return f"weights take {taken / 2**30:.2f} GiB, {taken / plain:.2f} of {opened.limits.dtype}'s"


def describe(opened: Opened, plan: MemoryPlan, reasons: list[Reason]) -> EngineInfo:
    """What the text edge and the server need to know."""
    model = opened.config.model
    tokenizer = opened.checkpoint.plain_tokenizer_facts
    if model.tokenizer is not None:
        tokenizer = {"folder": model.tokenizer}
    ends = opened.spec.eos_token_ids or Tokenizer.from_facts(tokenizer).eos_token_ids
    return EngineInfo(
        model=opened.model_name,
        max_model_len=plan.max_model_len,
        vocab_size=opened.spec.vocab_size,
        served_model_names=model.served_model_names or (opened.model_name,),
        eos_token_ids=ends,
        num_blocks=plan.num_blocks,
        block_size=opened.config.cache.block_size,
        max_num_seqs=plan.max_num_seqs,
        max_num_queued_reqs=opened.limits.max_num_queued_reqs,
        seed=model.seed,
        default_sampling=_default_sampling(opened),
        notes=tuple(str(reason) for reason in reasons),
        tokenizer=tokenizer,
    )


def _default_sampling(opened: Opened) -> dict[str, float]:
    asked = opened.config.model.generation_config
    if asked == "vllm":
        return {}
    if asked == "auto":
        return opened.checkpoint.generation_defaults
    return read_generation_defaults(Path(asked))
