"""What an engine's memory plan is made from: figures measured on the device, and what was asked.

Knows nothing about how the plan is made; runner/memory.py makes it.
"""

from __future__ import annotations

from threefold.engine.opened import Opened, calibration_limits, weights_bytes
from threefold.models.decoder import Decoder
from threefold.models.spec import ModelSpec
from threefold.runner.graphs import GraphLimits, expected_bytes
from threefold.runner.kv_pool import allocate_pool, block_bytes
from threefold.runner.memory import MemoryFacts, MemoryWishes
from threefold.runner.peak import measure_forward_peak, measure_position_bytes

TRIAL_BLOCKS_TOKENS = 2048
"""KV for the trial pass that measures the peak."""
KERNELS_PER_LAYER = 9
"""Two norms, four products, rotation, attention and its merge."""
LAUNCH_US = 16.0
"""That the host takes for one of them."""
CARD_TFLOP_S = 700.0
"""Of bf16 products on a Hopper card. All three are coarse: near the bound it matters little which way a step goes."""


def memory_facts(opened: Opened, free_bytes: int, peak_bytes: int, position_bytes: int | None = None) -> MemoryFacts:
    """Figures for the memory plan; free_bytes as it was before the weights were loaded."""
    block_size = opened.config.cache.block_size
    return MemoryFacts(
        is_gpu=opened.device.is_gpu,
        total_bytes=opened.device.total_bytes(),
        free_bytes=free_bytes,
        weights_bytes=_weights_bytes(opened, free_bytes),
        peak_bytes=peak_bytes,
        block_bytes=block_bytes(opened.spec, block_size, opened.kv_dtype),
        block_size=block_size,
        vocab_size=opened.spec.vocab_size,
        position_bytes=position_bytes,
        graphs_bytes=_graphs_bytes(opened, peak_bytes) if opened.device.is_gpu else 0,
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


def step_peak(opened: Opened, decoder: Decoder) -> tuple[int, int | None]:
    """Bytes of the largest forward pass, and on a card of one position's way to a token."""
    block_size = opened.config.cache.block_size
    num_blocks = -(-TRIAL_BLOCKS_TOKENS // block_size)
    kv = allocate_pool(opened.spec, num_blocks, block_size, opened.kv_dtype, opened.device.torch_device)
    limits = calibration_limits(opened, num_blocks)
    forward_bytes = measure_forward_peak(decoder, kv, opened.device, limits)
    return forward_bytes, measure_position_bytes(decoder, kv, opened.device, limits) if opened.device.is_gpu else None


def _weights_bytes(opened: Opened, free_bytes: int) -> int:
    """On a card what is gone by now, once it is more: tables, modules and workspaces beside the weights."""
    num_bytes = weights_bytes(opened)
    return max(num_bytes, free_bytes - opened.device.free_bytes()) if opened.device.is_gpu else num_bytes


def _graphs_bytes(opened: Opened, peak_bytes: int) -> int:
    limits = opened.limits
    token_bytes = peak_bytes // limits.max_num_batched_tokens
    # A draft model's passes hold less than the target's for each token, by an unknown share.
    specs = [(opened.spec, False), *([(opened.draft.checkpoint.spec, True)] if opened.draft is not None else [])]
    rows, length = limits.max_num_seqs, limits.max_model_len
    return sum(
        expected_bytes(graph_limits(opened, spec, rows, length), token_bytes, has_rounds=is_draft)
        for spec, is_draft in specs
    )


def graph_limits(opened: Opened, spec: ModelSpec, max_num_seqs: int, max_model_len: int) -> GraphLimits:
    """Which graphs a model of this engine gets, the engine's own or its draft model."""
    max_draft = opened.config.speculation.max_draft_tokens
    max_prompt_tokens = min(launch_bound_tokens(spec), opened.limits.max_num_batched_tokens)
    return GraphLimits(max_num_seqs, max_draft, max_model_len, spec.vocab_size, max_prompt_tokens)


def launch_bound_tokens(spec: ModelSpec) -> int:
    """Tokens of a step that a card computes while the host would launch its kernels one by one."""
    launching_s = spec.num_layers * KERNELS_PER_LAYER * LAUNCH_US / 1e6
    num_in_layers = spec.num_parameters - spec.vocab_size * spec.hidden_size * (1 if spec.has_tied_head else 2)
    return int(launching_s * CARD_TFLOP_S * 1e12 / (2 * num_in_layers))
