"""Attention and the KV write on a card, each alone: time, and the share of what memory or the tensor cores give.

    python -m threefold.bench.kernels_attention --json FILE [--sweep] [--model NAME]

Each op is captured several times over into one graph, over caches of its own, and the graph is timed: so launching
costs nothing and the KV comes from memory as it does in a step. `--sweep` tries block sizes and shows the best for each
shape, to fill kernels/triton/tables.py from. Knows nothing about engines.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from triton.runtime.errors import OutOfResources

from threefold.bench.kernels_command import run_kernels
from threefold.kernels.attention import StepBounds
from threefold.kernels.kv import FP8, KVCache, allocate
from threefold.kernels.rotary import HeadNorms, Heads, RotateAndStore, rotate_and_store
from threefold.kernels.triton.attention import CardAttention
from threefold.kernels.triton.tables import DecodeSizes, PromptSizes
from threefold.runner.device import CudaDevice

READ_GB_S = 4300.0
"""What one H200 moves."""
PEAK_TFLOP_S = 790.0
"""What its tensor cores give to large bf16 products."""
MODELS = {"qwen3-8b": Heads(32, 8, 128), "qwen3-0.6b": Heads(16, 8, 128), "smollm2-135m": Heads(9, 3, 64)}
ROWS, CONTEXTS, NEW = (1, 32, 256), (512, 1024, 4096), (1, 6)
PROMPTS = (512, 1024, 2048, 4096, 8192)
BLOCK_SIZE = 16
DTYPE = torch.bfloat16
SPREAD_BYTES = 256 << 20
"""KV of an op's copies together, where it is small: several times the card's cache."""
MAX_COPIES = 32
DECODE_SIZES = ((32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 4, 4), (128, 4, 2), (128, 4, 3))
"""Tried by the sweep: (block_n, num_warps, num_stages)."""
PROGRAMS = (264, 528, 1056, 2112)
"""Tried by the sweep: programs that decode is split into."""
PROMPT_SIZES = ((128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3))
"""Tried by the sweep: (block_m, block_n, num_warps, num_stages)."""


class Shape(NamedTuple):
    """A step: equal rows, and perhaps one prompt chunk behind them."""

    rows: int
    context: int
    new: int
    chunk: int = 0
    """Tokens of the chunk, without context before them; 0 = none."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(new tokens, context) of each row."""
        return [(self.new, self.context)] * self.rows + ([(self.chunk, self.chunk)] if self.chunk else [])


class Reading(NamedTuple):
    """One shape."""

    model: str
    kv: str
    rows: int
    context: int
    new: int
    chunk: int
    us: float
    gb_s: float
    """KV bytes that must be read at least once, a second."""
    tflop_s: float
    sizes: str
    """Block sizes; empty = the table's."""


class Stage:
    """A shape's tensors on a card: shuffled blocks, one cache for each copy of the op."""

    def __init__(self, shape: Shape, heads: Heads, kv_dtype: torch.dtype, device: torch.device) -> None:
        spans = shape.spans
        widths = [-(-context // BLOCK_SIZE) for _, context in spans]
        ids = torch.randperm(sum(widths), dtype=torch.int32)
        tables = torch.zeros((len(spans), max(widths)), dtype=torch.int32)
        first = 0
        for table, width in zip(tables, widths, strict=True):
            table[:width] = ids[first : first + width]
            first += width
        self.heads = heads
        self.shape = shape
        self.tables = tables.to(device)
        self.row_starts = torch.tensor([0] + [new for new, _ in spans]).cumsum(0).to(torch.int32).to(device)
        self.context_lens = torch.tensor([context for _, context in spans], dtype=torch.int32, device=device)
        num_tokens = sum(new for new, _ in spans)
        self.qkv = torch.randn((num_tokens, heads.width), dtype=DTYPE, device=device)
        self.bounds = StepBounds(num_tokens, max(new for new, _ in spans), max(context for _, context in spans))
        head_bytes = 2 * heads.num_kv_heads * heads.head_dim * kv_dtype.itemsize
        self.num_bytes = sum(context for _, context in spans) * head_bytes
        copies = max(2, min(MAX_COPIES, SPREAD_BYTES // self.num_bytes))
        self.caches = [self._filled(len(ids), kv_dtype, device) for _ in range(copies)]

    def _filled(self, num_blocks: int, kv_dtype: torch.dtype, device: torch.device) -> KVCache:
        kv = allocate(num_blocks, BLOCK_SIZE, self.heads.num_kv_heads, self.heads.head_dim, kv_dtype, device)
        for part in (kv.keys, kv.values):
            part.copy_(torch.randn(part.shape, dtype=DTYPE, device=device))
        return kv

    @property
    def num_flop(self) -> float:
        """Products of the scores that are seen, and of their values."""
        seen = sum(new * (context - new) + new * (new + 1) / 2 for new, context in self.shape.spans)
        return 4 * seen * self.heads.num_heads * self.heads.head_dim

    def us(self, attention: CardAttention, device: CudaDevice) -> float:
        """Time of one attention call."""

        def calls() -> None:
            kv_bytes = self.caches[0].keys.element_size()
            plan = attention.plan(self.row_starts, self.context_lens, self.tables, self.bounds, kv_bytes)
            for kv in self.caches:
                attention(self.qkv, kv, plan)

        return device.replay_ms(calls) / len(self.caches) * 1e3


def attention_shapes() -> Iterator[Shape]:
    """What is measured for each model: decode, verification, prompts, a chunk beside rows that decode."""
    for rows, context, new in product(ROWS, CONTEXTS, NEW):
        yield Shape(rows, context, new)
    for tokens in PROMPTS:
        yield Shape(1, tokens, tokens)
    for rows, chunk in product((31, 255), (16, 64, 512, 2048)):
        yield Shape(rows, 1024, 1, chunk)


def measure(stage: Stage, model: str, device: CudaDevice, sizes: dict[str, Any]) -> Reading:
    """One reading, with the table's block sizes or with `sizes`, keywords of CardAttention."""
    us = stage.us(CardAttention(stage.heads, stage.heads.head_dim**-0.5, None, **sizes), device)
    kv = "fp8" if stage.caches[0].keys.dtype == FP8 else "bf16"
    text = " ".join(str(tuple(value)) for value in sizes.values())
    return Reading(model, kv, *stage.shape, us, stage.num_bytes / us / 1e3, stage.num_flop / us / 1e6, text)


def show(reading: Reading) -> None:
    """One line of the table."""
    what = f"{reading.model:>12} {reading.kv:4} {reading.rows:3} rows x {reading.new:4} of {reading.context:4}"
    chunk = f" + {reading.chunk:4}" if reading.chunk else " " * 7
    memory = f"{reading.gb_s:6.0f} GB/s {reading.gb_s / READ_GB_S:6.1%}"
    cores = f"{reading.tflop_s:5.0f} TFLOP/s {reading.tflop_s / PEAK_TFLOP_S:6.1%}"
    print(f"{what}{chunk} {reading.us:9.1f} us {memory} {cores}  {reading.sizes}", flush=True)


def measure_all(models: list[str], device: CudaDevice) -> list[Reading]:
    """Every shape with the table's sizes, bf16 KV, then decode in FP8 KV."""
    readings = []
    for model in models:
        cases = [(shape, DTYPE) for shape in attention_shapes()]
        cases += [(Shape(rows, 1024, new), FP8) for rows, new in product(ROWS, NEW)]
        for shape, kv_dtype in cases:
            stage = Stage(shape, MODELS[model], kv_dtype, device.torch_device)
            readings.append(measure(stage, model, device, {}))
            show(readings[-1])
    return readings


def sweep(models: list[str], kv_dtype: torch.dtype, device: CudaDevice) -> list[Reading]:
    """The best sizes of each shape among a few; all readings are returned."""
    readings = []
    decode = [{"decode": DecodeSizes(*sizes, programs)} for sizes, programs in product(DECODE_SIZES, PROGRAMS)]
    prompt: list[dict[str, Any]] = [{"prompt": PromptSizes(*sizes)} for sizes in PROMPT_SIZES]
    for model in models:
        cases = [(Shape(rows, 1024, new), decode) for rows, new in product(ROWS, NEW)]
        cases += [(Shape(1, 4096, 1), decode), (Shape(1, 8192, 8192), prompt), (Shape(8, 512, 512), prompt)]
        cases += [(Shape(31, 1024, 1, chunk), prompt) for chunk in (64, 512)]
        for shape, candidates in cases:
            stage = Stage(shape, MODELS[model], kv_dtype, device.torch_device)
            tried = [reading for sizes in candidates for reading in _possible(stage, model, device, sizes)]
            for reading in sorted(tried, key=lambda reading: reading.us)[:3]:
                show(reading)
            readings += tried
    return readings


def _possible(stage: Stage, model: str, device: CudaDevice, sizes: dict[str, Any]) -> list[Reading]:
    """The reading, where the sizes fit into a multiprocessor; else they are named."""
    try:
        return [measure(stage, model, device, sizes)]
    except OutOfResources as error:
        print(f"{sizes}: {error}", flush=True)
        return []


def measure_writes(model: str, device: CudaDevice) -> list[dict[str, Any]]:
    """Norms, rotation and the KV write at growing numbers of tokens."""
    heads, place, readings = MODELS[model], device.torch_device, []
    ones = torch.ones(heads.head_dim, dtype=DTYPE, device=place)
    norms = HeadNorms(ones, ones, 1e-6)
    rotate = rotate_and_store(heads, norms, DTYPE, place)
    for tokens in (1, 32, 256, 8192):
        kv = allocate(-(-tokens // BLOCK_SIZE), BLOCK_SIZE, heads.num_kv_heads, heads.head_dim, DTYPE, place)
        qkv = torch.randn((MAX_COPIES if tokens <= 256 else 2, tokens, heads.width), dtype=DTYPE, device=place)
        angles, slots = torch.randn((tokens, heads.head_dim), device=place), torch.randperm(tokens, device=place)
        us = device.replay_ms(partial(_rotate_all, rotate, qkv, angles, slots, kv)) / len(qkv) * 1e3
        num_bytes = 2 * 2 * tokens * heads.width + tokens * heads.head_dim * 4
        readings.append({"model": model, "tokens": tokens, "us": us, "gb_s": num_bytes / us / 1e3})
        print(
            f"{model:>12} norm+rotary+write {tokens:5} tokens {us:8.1f} us {num_bytes / us / 1e3:6.0f} GB/s", flush=True
        )
    return readings


def _rotate_all(
    rotate: RotateAndStore, copies: torch.Tensor, angles: torch.Tensor, slots: torch.Tensor, kv: KVCache
) -> None:
    for qkv in copies:
        rotate(qkv, angles, slots, kv)


def run(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """All readings, shown as they come."""
    models = asked.model or ["qwen3-8b", "smollm2-135m"]
    kv_dtype = FP8 if asked.fp8_kv else DTYPE
    readings = sweep(models, kv_dtype, device) if asked.sweep else measure_all(models, device)
    writes = [] if asked.sweep else [reading for model in models for reading in measure_writes(model, device)]
    return {"attention": [reading._asdict() for reading in readings], "writes": writes}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Time paged attention on a card.")
    parser.add_argument("--sweep", action="store_true", help="try block sizes, show the best three of each shape")
    parser.add_argument("--fp8-kv", action="store_true", help="with --sweep: keys and values in FP8")
    parser.add_argument("--model", action="append", choices=MODELS, help="heads of this model; several allowed")
    run_kernels(parser, run)


if __name__ == "__main__":
    main()
