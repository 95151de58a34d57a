"""What was asked, and what is there, to what holds: a pure function that gives a reason for every value.

Knows neither torch nor files: facts about model and device are passed in as plain numbers, so that each decision can be
tested and `threefold plan` can explain it without loading a weight. Memory is decided later, by runner/memory.py, from
measured peaks; it may step these values down, with reasons of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from threefold.config import EngineConfig
from threefold.errors import ConfigError

DTYPES = ("bfloat16", "float16", "float32")
FP8_KV = ("fp8", "fp8_e4m3")
DTYPE_ALIASES = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is there: the model's limits and the device's habits."""

    max_positions: int
    """Longest context of the model, tokens."""
    checkpoint_dtype: str
    """What the weights are stored in."""
    is_gpu: bool
    """True on a card."""
    num_devices: int = 1
    """Cards that are there."""
    preferred_cpu_dtype: str = "float32"
    """What the processor multiplies fastest, by a measurement at start."""
    supports_bfloat16: bool = True
    """The card computes in bfloat16."""
    supports_fp8: bool = True
    """The card knows FP8 numbers."""
    has_kv_scales: bool = False
    """The checkpoint brings scales for an FP8 KV cache."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One decided value, and why."""

    name: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} {self.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Values that hold unless memory steps them down."""

    dtype: str
    """Weights and activations."""
    kv_cache_dtype: str
    """Keys and values: as dtype, or float8_e4m3fn."""
    max_model_len: int
    """Most tokens a request may have."""
    is_len_explicit: bool
    """True when max_model_len was asked for by the operator."""
    max_num_seqs: int
    """Most running requests."""
    max_num_batched_tokens: int
    """Most tokens in a step."""
    max_num_queued_reqs: int
    """Most waiting requests."""
    reasons: tuple[Reason, ...]
    """One for each value, in the order they were decided."""


def resolve_limits(config: EngineConfig, facts: Facts) -> Limits:
    """Decide dtype and limits.

    Raises:
        ConfigError: a value cannot hold at all.
    """
    _check_tensor_parallel(config.parallel.tensor_parallel_size, facts)
    dtype, dtype_why = _dtype(config.model.dtype, facts)
    kv_dtype, kv_why = _kv_cache_dtype(config.cache.kv_cache_dtype, dtype, facts)
    length, length_why = _max_model_len(config.model.max_model_len, facts)
    seqs, seqs_why = _max_num_seqs(config.scheduler.max_num_seqs, facts)
    budget, budget_why = _token_budget(config.scheduler.max_num_batched_tokens, facts)
    if budget < seqs:
        # Every running request must fit into a step with one token.
        seqs_why = f"{seqs} asked, stepped down: a step of max_num_batched_tokens holds no more rows"
        seqs = budget
    queued = config.scheduler.max_num_queued_reqs
    queue_why = "as asked" if queued is not None else "four times max_num_seqs, at least 256"
    queued = queued if queued is not None else max(4 * seqs, 256)
    return Limits(
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        max_model_len=length,
        is_len_explicit=config.model.max_model_len is not None,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_num_queued_reqs=queued,
        reasons=(
            Reason("dtype", dtype, dtype_why),
            Reason("kv_cache_dtype", kv_dtype, kv_why),
            Reason("max_model_len", str(length), length_why),
            Reason("max_num_seqs", str(seqs), seqs_why),
            Reason("max_num_batched_tokens", str(budget), budget_why),
            Reason("max_num_queued_reqs", str(queued), queue_why),
        ),
    )


def _check_tensor_parallel(size: int, facts: Facts) -> None:
    if size < 1:
        raise ConfigError(f"--tensor-parallel-size must be at least 1, got {size}")
    if size > facts.num_devices:
        there = f"{facts.num_devices} card(s) are there" if facts.is_gpu else "there is no card, only a CPU"
        raise ConfigError(f"--tensor-parallel-size {size}: {there}; use --tensor-parallel-size {facts.num_devices}")
    if size > 1:
        raise ConfigError(f"--tensor-parallel-size {size}: more than one card is not built in Threefold yet; use 1")


def _dtype(asked: str, facts: Facts) -> tuple[str, str]:
    asked = DTYPE_ALIASES.get(asked, asked)
    if asked != "auto":
        if asked not in DTYPES:
            raise ConfigError(f"--dtype {asked} is unknown; use auto, {', '.join(DTYPES)}")
        if asked == "float16" and not facts.is_gpu:
            raise ConfigError("--dtype float16 is slow and inexact on a CPU; use bfloat16, float32 or auto")
        return asked, "as asked"
    if not facts.is_gpu:
        return facts.preferred_cpu_dtype, "the faster product on this processor, measured at start"
    if facts.checkpoint_dtype == "bfloat16" and not facts.supports_bfloat16:
        return "float16", "this card has no bfloat16"
    if facts.checkpoint_dtype == "float32":
        return "bfloat16", "the checkpoint is float32, which a card reads at half the speed"
    return facts.checkpoint_dtype, "as the checkpoint is stored"


def _kv_cache_dtype(asked: str, dtype: str, facts: Facts) -> tuple[str, str]:
    if asked == "auto":
        return dtype, "the model's own"
    if asked not in FP8_KV:
        raise ConfigError(f"--kv-cache-dtype {asked} is not built in Threefold yet; use auto or fp8")
    if not facts.is_gpu:
        raise ConfigError(
            f"--kv-cache-dtype {asked} needs a card: a CPU's attention reads keys and values in {dtype}; use auto"
        )
    if not facts.supports_fp8:
        raise ConfigError(
            f"--kv-cache-dtype {asked}: this card has no FP8 numbers, which come with compute capability 8.9; use auto"
        )
    scales = "from the checkpoint" if facts.has_kv_scales else "measured at start"
    return "float8_e4m3fn", f"as asked, scales {scales}"


def _max_model_len(asked: int | None, facts: Facts) -> tuple[int, str]:
    if asked is None:
        return facts.max_positions, "the model's own limit"
    if asked < 1:
        raise ConfigError(f"--max-model-len must be at least 1, got {asked}")
    if asked > facts.max_positions:
        raise ConfigError(
            f"--max-model-len {asked} is beyond the {facts.max_positions} positions this model was made for; "
            f"use at most {facts.max_positions}"
        )
    return asked, "as asked"


def _max_num_seqs(asked: int | None, facts: Facts) -> tuple[int, str]:
    if asked is None:
        return (256, "default on a GPU") if facts.is_gpu else (64, "default on a CPU")
    if asked < 1:
        raise ConfigError(f"--max-num-seqs must be at least 1, got {asked}")
    return asked, "as asked"


def _token_budget(asked: int | None, facts: Facts) -> tuple[int, str]:
    if asked is None:
        return (8192, "default on a GPU") if facts.is_gpu else (512, "default on a CPU: a longer step delays every row")
    if asked < 1:
        raise ConfigError(f"--max-num-batched-tokens must be at least 1, got {asked}")
    return asked, "as asked"
