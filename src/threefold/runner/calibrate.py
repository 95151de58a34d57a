"""Measures what a step costs on this device, so that nothing about cost is guessed.

Knows nothing about requests: it feeds made-up rows over whatever lies in the KV cache to a callable that runs a step,
and times it. The readings become a `CostCurve`; engine/loaded.py keeps them on disk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from threefold.cost import StepShape
from threefold.layers.attention import KVCache
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.runner.device import Device
from threefold.sample.sampler import most_likely

MAX_SECONDS = 6.0
NUM_ROUNDS = 3
SHORT_TOKENS, LONG_TOKENS = 64, 1024
"""Contexts that rows are given."""
MOST_VERIFIED_TOKENS = 4096
"""Of a step with drafts, on a card."""
MOST_WANTED = 17
"""Tokens of a row whose logits are all wanted: the longest draft and one; a longer row is a prompt."""
MADE_UP_TOKENS = 97
"""Different tokens in made-up text, where the vocabulary has so many."""
_ROWS_IN_DETAIL = (1, 32, 256)

_Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class CalibrationLimits:
    """The shapes that the engine can meet."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int = MADE_UP_TOKENS


def eager_step(decoder: Decoder, kv: list[KVCache]) -> Callable[[Batch], object]:
    """A step as it is without captured graphs: forward, logits, the most likely token of each."""
    return lambda batch: most_likely(decoder.logits(decoder.forward(batch, kv)))


def measure_steps(
    run: Callable[[Batch], object], device: Device, limits: CalibrationLimits, max_s: float = MAX_SECONDS
) -> list[tuple[StepShape, float]]:
    """Time steps of growing shape, all of them in turn, several times over; stops when max_s is used up.

    What counts is the best time of each: whatever else the machine does only ever adds to one. Bodies that a shape is
    the first to need are compiled on top of max_s: else a curve measured before anything is compiled, and then kept,
    would know little but how long compiling takes.

    Args:
        run: runs a batch as the engine would, through captured graphs where it has them.
        device: where.
        limits: the shapes that the engine can meet.
        max_s: seconds that the steps may take.

    Returns:
        (shape, ms) pairs: one row of few tokens, then more rows with and without drafts at a short and at a long
        context, then larger prompt chunks; on a card many more of each.
    """
    best: dict[_Shape, float] = {}
    spent_ms = 0.0
    for shape in itertools.chain.from_iterable(_shapes(device, limits) for _ in range(NUM_ROUNDS)):
        batch = made_up_batch(*shape, limits, device.torch_device)
        run(batch)  # whose caches and compiled bodies are then warm
        ms = device.time_ms(partial(run, batch))
        best[shape] = min(ms, best.get(shape, math.inf))
        spent_ms += 2 * ms
        if spent_ms > max_s * 1e3:
            break
    return [(_shape_of(*shape), ms) for shape, ms in best.items()]


def _shapes(device: Device, limits: CalibrationLimits) -> Iterator[_Shape]:
    """(rows, new tokens a row, context a row) in the order of their use to the controller."""
    return card_shapes(limits) if device.is_gpu else cpu_shapes(limits)


def cpu_shapes(limits: CalibrationLimits) -> Iterator[_Shape]:
    """What a CPU can time in a few seconds."""
    pool_tokens = limits.num_blocks * limits.block_size
    short = min(SHORT_TOKENS, limits.max_model_len, pool_tokens)
    for num_new in (1, 2, 4, 6, 8):
        if num_new <= min(short, limits.max_num_batched_tokens):
            yield 1, num_new, short
    rows = [n for n in (4, 16, 64, 256, 1024) if n <= min(limits.max_num_seqs, limits.max_num_batched_tokens)]
    for num_rows in rows:
        yield num_rows, 1, short
    long = min(LONG_TOKENS, limits.max_model_len, pool_tokens)
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


def card_shapes(limits: CalibrationLimits) -> Iterator[_Shape]:
    """What a card can: every number of drafts up to eight at three numbers of rows, fewer at other powers of two."""
    pool_tokens = limits.num_blocks * limits.block_size
    longest = min(limits.max_model_len, pool_tokens)
    short, long = min(SHORT_TOKENS, longest), min(LONG_TOKENS, longest)
    yield from _prompt_shapes(limits)  # first, for a curve cut short would otherwise know nothing of prompts
    for num_rows, num_new in _row_shapes(limits):
        if num_new <= short:
            yield num_rows, num_new, short
        # Rows that shared blocks for want of others would read them from the card's cache.
        if num_new in (1, 5) and short < long and num_rows * long <= pool_tokens:
            yield num_rows, num_new, long


def warm_prompts(run: Callable[[Batch], object], device: Device, limits: CalibrationLimits) -> None:
    """Prompts of growing length, once each: what they are the first to need is compiled before a request waits for it.

    Behind its attention the last layer feeds only tokens whose logits are wanted, one for each prompt that ends and
    each row beside it: the longest is run again for numbers that fill no tile, which steps in graphs never have.

    Args:
        run: runs a batch as the engine would.
        device: a card.
        limits: the shapes that the engine can meet.
    """
    shapes = list(_prompt_shapes(limits))
    for shape in shapes:
        device.time_ms(partial(run, made_up_batch(*shape, limits, device.torch_device)))  # one at a time: it waits
    if not shapes:
        return
    longest = made_up_batch(*shapes[-1], limits, device.torch_device)
    for num_wanted in _partly_full(min(limits.max_num_seqs, shapes[-1][1])):
        wanted = torch.arange(num_wanted, device=device.torch_device)
        device.time_ms(partial(run, replace(longest, logit_tokens=wanted)))


def _partly_full(most: int) -> Iterator[int]:
    """One more than each power of two, up to `most`."""
    return itertools.takewhile(lambda number: number <= most, ((1 << power) + 1 for power in itertools.count()))


def _prompt_shapes(limits: CalibrationLimits) -> Iterator[_Shape]:
    longest = min(limits.max_num_batched_tokens, limits.max_model_len, limits.num_blocks * limits.block_size)
    for power in range(5, 14):
        if 1 << power <= longest:
            yield 1, 1 << power, 1 << power


def _row_shapes(limits: CalibrationLimits) -> Iterator[tuple[int, int]]:
    """(rows, new tokens a row) of steps without prompts."""
    most_rows = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    most_tokens = min(limits.max_num_batched_tokens, max(MOST_VERIFIED_TOKENS, most_rows))
    for num_rows in (*(1 << power for power in range(most_rows.bit_length()) if 1 << power < most_rows), most_rows):
        for num_new in range(1, 10) if num_rows in _ROWS_IN_DETAIL else (1, 2, 3, 5, 9):
            if num_rows * num_new <= most_tokens:
                yield num_rows, num_new


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
        token_ids=(torch.arange(num_tokens) % min(MADE_UP_TOKENS, limits.vocab_size)).to(device),
        positions=offsets.repeat(num_rows).to(device),
        slots=slots.reshape(-1).to(device),
        row_starts=(torch.arange(num_rows + 1) * num_new).to(device, torch.int32),
        context_lens=torch.full((num_rows,), context, dtype=torch.int32, device=device),
        block_tables=tables.to(device, torch.int32).contiguous(),
        # Prompt chunks want one token's logits, rows with drafts want all of theirs.
        logit_tokens=torch.arange(num_tokens if num_new <= MOST_WANTED else 1, device=device),
        max_new=num_new,
        max_context=context,
    )
