"""How many KV blocks fit, and what has to shrink when they do not: a pure function with a reason for every value.

    usable = share of the device's memory that the engine may use; on a card never its last RESERVE_BYTES
    kv     = usable - weights - peak of a forward pass - logits of the largest step - captured graphs

What a step holds is counted with a margin on a card, where torch's allocator rounds sizes up and leaves gaps between.

Knows nothing about tensors; what a device has and what a pass takes is measured and passed in. engine/resolve.py prints
the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from threefold.errors import MemoryPlanError

GIB = 1024**3
CPU_KV_BYTES = 4 * GIB
"""Most that the KV cache takes of a CPU's memory unless told otherwise."""
LOGITS_COPIES = 4
"""float32 copies of a step's logits held at once where nothing was measured: as computed, kept raw for
log-probabilities, those picked of them, and their exponentials."""
RESERVE_BYTES = GIB // 2
"""Of a card, left to the driver: modules of compiled bodies, workspaces of products, other contexts."""
STEP_MARGIN = 0.1
"""Of what a step holds on a card: rounding and gaps of torch's allocator."""
REMEDIES = (
    "raise --gpu-memory-utilization or --kv-cache-memory-bytes, lower --max-model-len, "
    "or raise --num-gpu-blocks-override"
)


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What was measured."""

    is_gpu: bool
    """True on a card."""
    total_bytes: int
    """The device's memory."""
    free_bytes: int
    """Of it, free before the weights were loaded."""
    weights_bytes: int
    """What the weights took."""
    peak_bytes: int
    """Most that a forward pass of max_num_batched_tokens held beside weights and KV."""
    block_bytes: int
    """One KV block over all layers."""
    block_size: int
    """Tokens a block."""
    vocab_size: int
    """Width of the logits."""
    position_bytes: int | None = None
    """Most that one position's logits held on their way to a token, measured; None = LOGITS_COPIES of them."""
    graphs_bytes: int = 0
    """What captured graphs hold beside the peak."""


@dataclass(frozen=True, slots=True)
class MemoryWishes:
    """What was asked, limits as engine/resolve.py decided them."""

    max_model_len: int
    """Most tokens a request may have."""
    is_len_explicit: bool
    """True when the operator asked for that length, False when it is the model's own."""
    max_num_seqs: int
    """Most running requests."""
    max_num_batched_tokens: int
    """Most tokens in a step."""
    max_draft: int = 0
    """Most drafts a row and step."""
    gpu_memory_utilization: float = 0.9
    """Share of the memory that may be used."""
    kv_cache_memory_bytes: int | None = None
    """Exact size of the KV cache."""
    num_blocks: int | None = None
    """Exact number of blocks."""


class Line(NamedTuple):
    """One decided value and why, ready to be printed."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What holds."""

    num_blocks: int
    """KV blocks."""
    max_model_len: int
    """Most tokens a request may have."""
    max_num_seqs: int
    """Most running requests."""
    lines: tuple[Line, ...]
    """A reason for each value."""


def plan_memory(facts: MemoryFacts, wishes: MemoryWishes) -> MemoryPlan:
    """Decide the number of blocks; step max_num_seqs and max_model_len down where they cannot hold.

    Raises:
        MemoryPlanError: not even one request of the length asked for fits, or the model itself does not.
    """
    stepped, seqs_why = _step_down_seqs(facts, wishes)
    num_blocks, why = _num_blocks(facts, stepped)
    lines = [Line("num_blocks", str(num_blocks), why)]
    max_len = _max_model_len(facts, stepped, num_blocks)
    if max_len < wishes.max_model_len:
        why = f"stepped down from the model's {wishes.max_model_len}: {num_blocks} blocks hold no longer request"
        lines.append(Line("max_model_len", str(max_len), why))
    max_seqs = min(stepped.max_num_seqs, num_blocks)
    if max_seqs < stepped.max_num_seqs:
        seqs_why = f"stepped down from {wishes.max_num_seqs}: every request needs at least one of {num_blocks} blocks"
    if max_seqs < wishes.max_num_seqs:
        lines.append(Line("max_num_seqs", str(max_seqs), seqs_why))
    return MemoryPlan(num_blocks, max_len, max_seqs, tuple(lines))


def check_weights_fit(free_bytes: int, weights_bytes: int) -> None:
    """Refuse a model before any of its weights is loaded.

    Raises:
        MemoryPlanError: the weights alone are more than what is free.
    """
    if weights_bytes > free_bytes:
        raise MemoryPlanError(
            f"the weights take {_gib(weights_bytes)} and {_gib(max(free_bytes, 0))} are free: use a smaller model, end "
            "what else uses the memory, or divide the model with --tensor-parallel-size"
        )


def logits_bytes(facts: MemoryFacts, wishes: MemoryWishes) -> int:
    """Memory that the largest step's logits take on their way to tokens."""
    num_positions = min(wishes.max_num_seqs * (1 + wishes.max_draft), wishes.max_num_batched_tokens)
    position_bytes = facts.position_bytes
    if position_bytes is None:
        position_bytes = facts.vocab_size * 4 * LOGITS_COPIES
    return num_positions * position_bytes


def taken_bytes(facts: MemoryFacts, wishes: MemoryWishes) -> int:
    """All that is not KV: weights, the largest step, graphs."""
    step = facts.peak_bytes + logits_bytes(facts, wishes)
    margin = int(STEP_MARGIN * step) if facts.is_gpu else 0
    return facts.weights_bytes + step + margin + facts.graphs_bytes


def _step_down_seqs(facts: MemoryFacts, wishes: MemoryWishes) -> tuple[MemoryWishes, str]:
    """Halve the running requests until their logits leave room for what is needed, where that can help."""
    needed = _needed_bytes(facts, wishes)
    if _left_bytes(facts, replace(wishes, max_num_seqs=1)) < needed:
        needed = facts.block_bytes  # the length will have to shrink, or the size is refused, whatever the rows
    stepped = wishes
    while stepped.max_num_seqs > 1 and _left_bytes(facts, stepped) < needed:
        stepped = replace(stepped, max_num_seqs=stepped.max_num_seqs // 2)
    return (
        stepped,
        f"stepped down from {wishes.max_num_seqs}: the logits of more rows leave too little for the KV cache",
    )


def _needed_bytes(facts: MemoryFacts, wishes: MemoryWishes) -> int:
    """The KV cache's exact size where one was asked for, else one request of full length."""
    if wishes.num_blocks is not None:
        return wishes.num_blocks * facts.block_bytes
    if wishes.kv_cache_memory_bytes is not None:
        return wishes.kv_cache_memory_bytes
    return _blocks_of(wishes.max_model_len, facts.block_size) * facts.block_bytes


def _num_blocks(facts: MemoryFacts, wishes: MemoryWishes) -> tuple[int, str]:
    if wishes.num_blocks is not None:
        _check_there(
            facts, wishes, f"--num-gpu-blocks-override {wishes.num_blocks}", wishes.num_blocks * facts.block_bytes
        )
        return wishes.num_blocks, "as asked"
    if wishes.kv_cache_memory_bytes is not None:
        size = _gib(wishes.kv_cache_memory_bytes)
        _check_there(facts, wishes, f"--kv-cache-memory-bytes {size}", wishes.kv_cache_memory_bytes)
        return wishes.kv_cache_memory_bytes // facts.block_bytes, f"{size} as asked"
    left = _left_bytes(facts, wishes)
    if left < facts.block_bytes:
        raise MemoryPlanError(
            f"the model does not fit: of {_gib(max(_usable_bytes(facts, wishes), 0))} usable memory the weights take "
            f"{_gib(facts.weights_bytes)} and a step {_gib(taken_bytes(facts, wishes) - facts.weights_bytes)}; "
            "raise --gpu-memory-utilization, lower --max-num-batched-tokens, or use a smaller model"
        )
    return _num_blocks_of_memory(facts, wishes, left)


def _num_blocks_of_memory(facts: MemoryFacts, wishes: MemoryWishes, left: int) -> tuple[int, str]:
    kind = "the card's memory" if facts.is_gpu else "free memory"
    by_memory = (
        left // facts.block_bytes,
        f"{_gib(left)}: {wishes.gpu_memory_utilization:g} of {kind} less weights less the measured peak",
    )
    if facts.is_gpu:
        return by_memory
    by_default = (CPU_KV_BYTES // facts.block_bytes, f"{_gib(CPU_KV_BYTES)}, the default on a CPU")
    by_need = (
        wishes.max_num_seqs * _blocks_of(wishes.max_model_len, facts.block_size),
        f"all that {wishes.max_num_seqs} requests of {wishes.max_model_len} tokens can use",
    )
    return min(by_memory, by_default, by_need, key=lambda choice: choice[0])


def _check_there(facts: MemoryFacts, wishes: MemoryWishes, flag: str, num_bytes: int) -> None:
    """An exact size overrules the share that may be used, but not what is there."""
    there = _left_bytes(facts, wishes)
    if num_bytes > there:
        raise MemoryPlanError(
            f"{flag} needs {_gib(num_bytes)}, but {_gib(max(there, 0))} are left beside the weights and a step"
        )


def _max_model_len(facts: MemoryFacts, wishes: MemoryWishes, num_blocks: int) -> int:
    holds = num_blocks * facts.block_size
    if holds >= wishes.max_model_len:
        return wishes.max_model_len
    if wishes.is_len_explicit or wishes.num_blocks is not None or holds == 0:
        raise MemoryPlanError(
            f"{num_blocks} KV blocks of {facts.block_size} tokens hold {holds} tokens, less than one request of "
            f"{wishes.max_model_len}: {REMEDIES}"
        )
    return holds


def _usable_bytes(facts: MemoryFacts, wishes: MemoryWishes) -> int:
    there = facts.free_bytes - (RESERVE_BYTES if facts.is_gpu else 0)
    if wishes.num_blocks is not None or wishes.kv_cache_memory_bytes is not None:
        return there
    if facts.is_gpu:
        return min(int(wishes.gpu_memory_utilization * facts.total_bytes), there)
    return int(wishes.gpu_memory_utilization * there)


def _left_bytes(facts: MemoryFacts, wishes: MemoryWishes) -> int:
    """What weights and the largest step leave."""
    return _usable_bytes(facts, wishes) - taken_bytes(facts, wishes)


def _blocks_of(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
