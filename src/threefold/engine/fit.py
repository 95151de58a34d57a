"""What an engine's memory plan is made from: figures measured on the device, and what was asked.

Knows nothing about how the plan is made; runner/memory.py makes it.
"""

from __future__ import annotations

from typing import NamedTuple

from threefold.engine.opened import Opened, calibration_limits, weights_bytes
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec
from threefold.runner.graphs import GraphLimits, expected_bytes
from threefold.runner.kv_pool import allocate_pool, block_bytes
from threefold.runner.memory import MemoryFacts, MemoryWishes
from threefold.runner.peak import measure_forward_peak, measure_launch_bound_tokens, measure_position_bytes

TRIAL_BLOCKS_TOKENS = 2048
"""KV for the trial pass that measures the peak."""
MAX_PROMPT_TOKENS = 2048
"""Of a step with prompts that gets a graph: what takes a card longer hides its launching even of small models."""
WORTH_LAUNCHES = 2
"""A graph pays up to steps that keep a card busy so many times as long as launching their kernels one by one takes: at
1.6 times (Qwen3-8B shapes, 1,000 tokens) it still saved a millisecond of 23, and the host was free for 10 of them."""


class StepFacts(NamedTuple):
    """What was measured of a model's steps; as it stands, of one that was not loaded."""

    peak_bytes: int = 0
    """Of the largest forward pass."""
    position_bytes: int | None = None
    """Of one position's way to a token; None = not measured."""
    max_prompt_tokens: int = MAX_PROMPT_TOKENS
    """Of a step with prompts that gets a graph."""


def memory_facts(opened: Opened, free_bytes: int, steps: StepFacts) -> MemoryFacts:
    """Figures for the memory plan; free_bytes as it was before the weights were loaded."""
    block_size = opened.config.cache.block_size
    return MemoryFacts(
        is_gpu=opened.device.is_gpu,
        total_bytes=opened.device.total_bytes(),
        free_bytes=free_bytes,
        weights_bytes=_weights_bytes(opened, free_bytes),
        peak_bytes=steps.peak_bytes,
        block_bytes=block_bytes(opened.spec, block_size, opened.kv_dtype),
        block_size=block_size,
        vocab_size=opened.spec.vocab_size,
        position_bytes=steps.position_bytes,
        graphs_bytes=_graphs_bytes(opened, steps) if opened.device.is_gpu else 0,
    )


def memory_wishes(opened: Opened) -> MemoryWishes:
    """What was asked, for the memory plan."""
    cache, limits, speculation = opened.config.cache, opened.limits, opened.config.speculation
    return MemoryWishes(
        max_model_len=limits.max_model_len,
        is_len_explicit=limits.is_len_explicit,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_draft=speculation.max_draft_tokens,
        gpu_memory_utilization=cache.gpu_memory_utilization,
        kv_cache_memory_bytes=cache.kv_cache_memory_bytes,
        num_blocks=cache.num_blocks,
    )


def measure_step_facts(opened: Opened, decoder: Decoder) -> StepFacts:
    """The largest forward pass; on a card also one position's way to a token, and how far launching takes longest."""
    block_size, device = opened.config.cache.block_size, opened.device
    num_blocks = -(-TRIAL_BLOCKS_TOKENS // block_size)
    kv = allocate_pool(opened.spec, num_blocks, block_size, opened.kv_dtype, device.torch_device)
    trial = decoder, kv, device, calibration_limits(opened, num_blocks)
    peak_bytes = measure_forward_peak(*trial)
    if not device.is_gpu:
        return StepFacts(peak_bytes)
    most_tokens = min(WORTH_LAUNCHES * measure_launch_bound_tokens(*trial), MAX_PROMPT_TOKENS)
    return StepFacts(peak_bytes, measure_position_bytes(*trial), most_tokens)


def _weights_bytes(opened: Opened, free_bytes: int) -> int:
    """On a card what is gone by now, once it is more: tables, modules and workspaces beside the weights."""
    num_bytes = weights_bytes(opened)
    return max(num_bytes, free_bytes - opened.device.free_bytes()) if opened.device.is_gpu else num_bytes


def _graphs_bytes(opened: Opened, steps: StepFacts) -> int:
    limits = opened.limits
    token_bytes = steps.peak_bytes // limits.max_num_batched_tokens
    # A draft model's passes hold less than the target's for each token, by an unknown share.
    specs = [(opened.spec, False), *([(opened.draft.checkpoint.spec, True)] if opened.draft is not None else [])]
    bounds = limits.max_num_seqs, limits.max_model_len, steps.max_prompt_tokens
    is_eager = opened.config.device.enforce_eager
    return sum(
        expected_bytes(graph_limits(opened, spec, *bounds), token_bytes, has_rounds=is_draft, is_eager=is_eager)
        for spec, is_draft in specs
    )


def graph_limits(
    opened: Opened, spec: ModelSpec, max_num_seqs: int, max_model_len: int, max_prompt_tokens: int
) -> GraphLimits:
    """Which graphs a model of this engine gets, the engine's own or its draft model."""
    max_draft = opened.config.speculation.max_draft_tokens
    is_eager = opened.config.device.enforce_eager  # then padding prompts would only be work
    max_prompt_tokens = 0 if is_eager else min(max_prompt_tokens, opened.limits.max_num_batched_tokens)
    return GraphLimits(max_num_seqs, max_draft, max_model_len, spec.vocab_size, max_prompt_tokens)
