"""A step by part on a card: rows that decode and a prompt beside them, all layers and the head in one graph.

    python -m threefold.bench.kernels_step --rows 32 --context 640 --prompts 0 16 64 512 --json FILE

The layers of a model with made-up weights, over a batch with room for more rows, as captured steps have it. What the
kernels do not account for is the time between them. Knows nothing about engines.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import torch

from threefold.bench.dummy import SHAPES
from threefold.bench.kernels_attention import BLOCK_SIZE, DTYPE, Shape, Stage
from threefold.bench.kernels_command import run_kernels
from threefold.bench.step_parts import BETWEEN, parts_of
from threefold.kernels.argmax import most_likely_on_device
from threefold.kernels.kv import FP8
from threefold.layers.attention import own_heads
from threefold.layers.batch import Batch
from threefold.models.decoder import Decoder
from threefold.models.registry import spec_from_config
from threefold.models.weights import DummyWeights
from threefold.parallel import single_group
from threefold.runner.device import CudaDevice

MAX_CONTEXT = 8192
"""What a captured step is told of its rows' contexts."""
PROFILED = 3
"""Replays whose kernels are told apart."""


class Reading(NamedTuple):
    """One step."""

    rows: int
    context: int
    new: int
    prompt: int
    ms: float
    parts_ms: dict[str, float]


def batch_of(stage: Stage, room: int) -> Batch:
    """A shape's step, tables padded to `room` rows, the last token of each row wanted."""
    spans = stage.shape.spans
    num_padded = max(0, room - len(spans))
    new, contexts = (torch.tensor(numbers, device=stage.tables.device) for numbers in zip(*spans, strict=True))
    rows = torch.arange(len(spans), device=new.device).repeat_interleave(new)
    places = torch.arange(len(rows), device=new.device) - stage.row_starts.long()[rows]
    positions = (contexts - new)[rows] + places
    blocks = stage.tables.long()[rows, positions // BLOCK_SIZE]
    pad = torch.nn.functional.pad
    return Batch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        slots=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        row_starts=pad(stage.row_starts, (0, num_padded), value=len(rows)),
        context_lens=pad(stage.context_lens, (0, num_padded)),
        block_tables=pad(stage.tables, (0, 0, 0, num_padded)),
        logit_tokens=stage.row_starts[1:].long() - 1,
        max_new=stage.bounds.max_new,
        max_context=MAX_CONTEXT,
    )


def measure(decoder: Decoder, shape: Shape, room: int, kv_dtype: torch.dtype, device: CudaDevice) -> Reading:
    """Time and parts of one step."""
    spec = decoder.spec
    heads = own_heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, single_group())
    stage = Stage(shape, heads, kv_dtype, device.torch_device)
    batch = batch_of(stage, room)
    kv = [stage.caches[layer % len(stage.caches)] for layer in range(spec.num_layers)]
    replay = device.captured(lambda: most_likely_on_device(decoder.logits(decoder.forward(batch, kv))))
    ms = min(device.time_ms(replay) for _ in range(2 * PROFILED))
    parts = parts_of(lambda: [replay() for _ in range(PROFILED)], PROFILED)
    parts[BETWEEN] = ms - sum(parts.values())
    return Reading(*shape, ms, parts)


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading, shown as it comes."""
    decoder = Decoder(spec_from_config(SHAPES[asked.model]), DTYPE, device.torch_device)
    decoder.load(DummyWeights(decoder.spec, 0).read(DTYPE, device.torch_device))
    readings = []
    for rows in asked.rows:
        for prompt in asked.prompts:
            shape = Shape(rows, asked.context, asked.new, prompt)
            room = min(rows * asked.new + prompt, asked.room) if prompt else rows
            reading = measure(decoder, shape, room, FP8 if asked.fp8_kv else DTYPE, device)
            parts = "  ".join(f"{name} {ms:.3f}" for name, ms in reading.parts_ms.items() if round(ms, 3))
            print(f"{rows:4} rows x {asked.new} + {prompt:4}  {reading.ms:8.3f} ms   {parts}", flush=True)
            readings.append(reading._asdict())
    return {"model": asked.model, "steps": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Time a step on a card by part.")
    parser.add_argument("--model", choices=SHAPES, default="qwen3-8b", help="shapes of this model (qwen3-8b)")
    parser.add_argument("--rows", type=int, nargs="+", default=(1, 32, 256), help="rows that decode (1 32 256)")
    parser.add_argument("--context", type=int, default=640, help="tokens of each of them (640)")
    parser.add_argument("--new", type=int, default=1, help="new tokens of each of them (1)")
    parser.add_argument("--prompts", type=int, nargs="+", default=(0, 64, 512), help="tokens of a prompt (0 64 512)")
    parser.add_argument("--room", type=int, default=256, help="rows that a step with a prompt has room for (256)")
    parser.add_argument("--fp8-kv", action="store_true", help="keys and values in FP8")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
