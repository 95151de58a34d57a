"""A decode step's kernels one behind another, all layers and the head, and how attention is cut.

    python -m threefold.bench.kernels_chain --rows 1 32 --json FILE

The same weights and caches, captured into one graph for each number of programs that attention's contexts are split
over, timed in turns. Sizes are Qwen3-8B's.
Knows nothing about engines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.bench.kernels_attention import MODELS, Shape, Stage
from threefold.bench.kernels_command import run_kernels
from threefold.bench.kernels_small import DTYPE, HIDDEN, INNER, LAYERS, PRODUCTS, VOCAB
from threefold.kernels.kv import FP8
from threefold.kernels.linear import MAX_FEW_TOKENS_ON_CARD, Product
from threefold.kernels.rotary import HeadNorms, Heads
from threefold.kernels.triton.activation import silu_mul_body
from threefold.kernels.triton.attention import CardAttention
from threefold.kernels.triton.norm import rms_norm_body
from threefold.kernels.triton.product import FewTokens
from threefold.kernels.triton.rotary import rotate_and_store_body
from threefold.kernels.triton.tables import DecodeSizes, decode_sizes, product_sizes
from threefold.runner.device import CudaDevice

EPS = 1e-6
ROUNDS = 3


class Reading(NamedTuple):
    """One way to cut attention at one number of rows."""

    rows: int
    programs: int
    best_ms: float
    all_ms: tuple[float, ...]


class Weights:
    """Of all layers and the head, random."""

    def __init__(self, device: torch.device) -> None:
        def made(shape: tuple[int, int]) -> torch.Tensor:
            return torch.randn(shape, dtype=DTYPE, device=device).div_(shape[1] ** 0.5)

        self.layers = [{name: made(shape) for name, shape in PRODUCTS.items()} for _ in range(LAYERS)]
        self.head = made((VOCAB, HIDDEN))
        self.norm = torch.ones(HIDDEN, dtype=DTYPE, device=device)
        self.head_norm = torch.ones(MODELS["qwen3-8b"].head_dim, dtype=DTYPE, device=device)


def _product(weight: torch.Tensor, rows: int, *, is_gated: bool = False) -> Product:
    if rows <= MAX_FEW_TOKENS_ON_CARD:
        cut = partial(product_sizes, *weight.shape, is_gated=is_gated)
        return FewTokens(weight, None, cut, is_gated=is_gated)
    if not is_gated:
        return lambda x: F.linear(x, weight)
    gate = silu_mul_body(INNER)
    return lambda x: gate(F.linear(x, weight))


def step_of(weights: Weights, stage: Stage, decode: DecodeSizes) -> Callable[[], object]:
    """All kernels of a step, attention cut one way, as models/decoder.py orders them."""
    rows, heads = stage.shape.rows, stage.heads
    normalise = rms_norm_body(weights.norm, EPS)
    norms = HeadNorms(weights.head_norm, weights.head_norm, EPS)
    rotate = rotate_and_store_body(heads, norms)
    attention = CardAttention(heads, heads.head_dim**-0.5, None, decode=decode)
    layers = [
        {name: _product(weight, rows, is_gated=name == "gate_up") for name, weight in layer.items()}
        for layer in weights.layers
    ]
    head = _product(weights.head, rows)
    place = stage.qkv.device
    first = torch.randn((rows, HIDDEN), dtype=DTYPE, device=place)
    angles, slots = torch.randn((rows, heads.head_dim), device=place), torch.arange(rows, device=place)

    def step() -> object:
        kv_bytes = stage.caches[0].keys.element_size()
        plan = attention.plan(stage.row_starts, stage.context_lens, stage.tables, stage.bounds, kv_bytes)
        hidden, residual = first, torch.zeros_like(first)
        for index, products in enumerate(layers):
            kv = stage.caches[index % len(stage.caches)]
            qkv = products["qkv"](normalise(hidden, residual))
            rotate(qkv, angles, slots, kv)
            attended = products["o"](attention(qkv, kv, plan))
            hidden = products["down"](products["gate_up"](normalise(attended, residual)))
        return head(normalise(hidden, residual))

    return step


def cuts(heads: Heads, rows: int, kv_dtype: torch.dtype, programs: list[int]) -> list[DecodeSizes]:
    """As engines cut; then each other number of programs asked for."""
    table = decode_sizes(heads.head_dim, kv_dtype.itemsize, rows * heads.num_kv_heads, is_narrow=True)
    return [table._replace(num_programs=num) for num in dict.fromkeys((table.num_programs, *programs))]


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading, all numbers of programs in turn, shown as they come."""
    weights = Weights(device.torch_device)
    kv_dtype = FP8 if asked.fp8_kv else DTYPE
    readings = []
    for rows in asked.rows:
        stage = Stage(Shape(rows, asked.context, 1), MODELS["qwen3-8b"], kv_dtype, device.torch_device)
        ways = cuts(stage.heads, rows, kv_dtype, asked.programs)
        steps = {cut.num_programs: step_of(weights, stage, cut) for cut in ways}
        times: dict[int, list[float]] = {programs: [] for programs in steps}
        for _ in range(ROUNDS):
            for programs, step in steps.items():
                times[programs].append(device.replay_ms(step))
        for programs, found in times.items():
            readings.append(Reading(rows, programs, min(found), tuple(found))._asdict())
            shown = "  ".join(f"{ms:.3f}" for ms in found)
            print(
                f"{rows:4} rows x {asked.context} tokens  {programs:4} programs {min(found):7.3f} ms   ({shown})",
                flush=True,
            )
    return {"chain": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Time a Qwen3-8B decode step's kernels one behind another.")
    parser.add_argument("--rows", type=int, nargs="+", default=(1, 32, 256), help="rows of the steps (1 32 256)")
    parser.add_argument("--context", type=int, default=640, help="tokens of each row (640)")
    parser.add_argument(
        "--programs", type=int, nargs="*", default=(528,), help="to split attention over, beside the table's (528)"
    )
    parser.add_argument("--fp8-kv", action="store_true", help="keys and values in FP8")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
