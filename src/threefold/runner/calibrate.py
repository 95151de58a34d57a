"""Measures what a step costs on this device, so that nothing about cost is guessed.

Knows nothing about requests: it feeds made-up rows over whatever lies in the KV cache and times forward, logits and the
choice of the most likely token. The readings become a `CostCurve`; engine/build.py keeps them on disk.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from threefold.cost import StepShape
from threefold.layers.attention import KVCache
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.runner.device import Device
from threefold.sample.sampler import most_likely

MAX_SECONDS = 6.0
NUM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class CalibrationLimits:
    """The shapes that the engine can meet."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


def measure_steps(
    decoder: Decoder, kv: list[KVCache], device: Device, limits: CalibrationLimits, max_s: float = MAX_SECONDS
) -> list[tuple[StepShape, float]]:
    """Time steps of growing shape, all of them in turn, several times over; stops when max_s is used up.

    What counts is the best time of each: whatever else the machine does only ever adds to one.

    Returns:
        (shape, ms) pairs: one row of 1 to 8 tokens, then 1 to max_num_seqs single-token rows at a short and at a long
        context, then larger prompt chunks.
    """
    best: dict[tuple[int, int, int], float] = {}
    deadline = time.perf_counter() + max_s
    for shape in itertools.chain.from_iterable(_shapes(limits) for _ in range(NUM_ROUNDS)):
        batch = made_up_batch(*shape, limits, device.torch_device)
        best[shape] = min(_time_ms(decoder, kv, device, batch), best.get(shape, math.inf))
        if time.perf_counter() > deadline:
            break
    return [(_shape_of(*shape), ms) for shape, ms in best.items()]


def _shapes(limits: CalibrationLimits) -> Iterator[tuple[int, int, int]]:
    """(rows, new tokens a row, context a row) in the order of their use to the controller."""
    pool_tokens = limits.num_blocks * limits.block_size
    short = min(64, limits.max_model_len, pool_tokens)
    for num_new in (1, 2, 4, 6, 8):
        if num_new <= min(short, limits.max_num_batched_tokens):
            yield 1, num_new, short
    rows = [n for n in (4, 16, 64, 256, 1024) if n <= min(limits.max_num_seqs, limits.max_num_batched_tokens)]
    for num_rows in rows:
        yield num_rows, 1, short
    long = min(1024, limits.max_model_len, pool_tokens)
    for num_rows in (1, *rows[:3]):
        if long > short:
            yield num_rows, 1, long
    for num_rows, num_new in ((1, 8), (16, 4)):  # tells the arithmetic of attention from its reading
        if long > short and num_rows <= limits.max_num_seqs and num_rows * num_new <= limits.max_num_batched_tokens:
            yield num_rows, num_new, long
    for num_rows in rows:
        if num_rows * 4 <= limits.max_num_batched_tokens and short >= 4:
            yield num_rows, 4, short
    for num_new in (32, 128, 512, 2048):
        if num_new <= min(limits.max_num_batched_tokens, limits.max_model_len, pool_tokens):
            yield 1, num_new, num_new


def _shape_of(num_rows: int, num_new: int, context: int) -> StepShape:
    return StepShape(num_tokens=num_rows * num_new, num_rows=num_rows, kv_tokens=num_rows * context)


def made_up_batch(num_rows: int, num_new: int, context: int, limits: CalibrationLimits, device: torch.device) -> Batch:
    """Rows over consecutive blocks; where the pool is too small rows share blocks, which costs the same to read."""
    blocks_per_row = -(-context // limits.block_size)
    first = torch.arange(num_rows).unsqueeze(1) * blocks_per_row
    tables = (first + torch.arange(blocks_per_row)) % limits.num_blocks  # [num_rows, blocks_per_row]
    offsets = torch.arange(context - num_new, context)  # [num_new]
    blocks = tables[:, offsets // limits.block_size]  # [num_rows, num_new]
    slots = blocks * limits.block_size + offsets % limits.block_size
    num_tokens = num_rows * num_new
    return Batch(
        token_ids=(torch.arange(num_tokens) % 97).to(device),
        positions=offsets.repeat(num_rows).to(device),
        slots=slots.reshape(-1).to(device),
        row_starts=(torch.arange(num_rows + 1) * num_new).to(device, torch.int32),
        context_lens=torch.full((num_rows,), context, dtype=torch.int32, device=device),
        block_tables=tables.to(device, torch.int32).contiguous(),
        # Prompt chunks want one token's logits, rows with drafts want all of theirs.
        logit_tokens=torch.arange(num_tokens if num_new <= 8 else 1, device=device),
        max_new=num_new,
        max_context=context,
    )


def _time_ms(decoder: Decoder, kv: list[KVCache], device: Device, batch: Batch) -> float:
    """Time of a step right after one of the same shape, whose caches and compiled bodies are then warm."""
    for _ in range(2):
        device.synchronize()
        start = time.perf_counter()
        most_likely(decoder.logits(decoder.forward(batch, kv)))
        device.synchronize()
    return (time.perf_counter() - start) * 1000
