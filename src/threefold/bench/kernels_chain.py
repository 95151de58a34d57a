"""A decode step's kernels one behind another, all layers and the head: what it costs how each begins.

    python -m threefold.bench.kernels_chain --rows 1 32 --json FILE

The same weights and caches, captured into one graph for each way of launching, timed in turns: ordinary launches, and
launches that overlap (kernels/triton/launch.py) with more or less of a weight brought near ahead, and with attention's
contexts cut into more or fewer pieces. Sizes are Qwen3-8B's.
Knows nothing about engines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.bench.kernels_attention import MODELS, Shape, Stage
from threefold.bench.kernels_command import run_kernels
from threefold.bench.kernels_small import DTYPE, HIDDEN, INNER, LAYERS, PRODUCTS, VOCAB
from threefold.kernels.kv import FP8
from threefold.kernels.linear import MAX_FEW_TOKENS_ON_CARD, Product
from threefold.kernels.rotary import HeadNorms
from threefold.kernels.triton.activation import silu_mul_body
from threefold.kernels.triton.attention import CardAttention
from threefold.kernels.triton.norm import rms_norm_body
from threefold.kernels.triton.product import AHEAD_BYTES, few_tokens_body
from threefold.kernels.triton.rotary import rotate_and_store_body
from threefold.kernels.triton.tables import decode_sizes, product_sizes
from threefold.runner.device import CudaDevice

EPS = 1e-6
ROUNDS = 3


class Way(NamedTuple):
    """How kernels are launched."""

    overlaps: bool
    ahead_bytes: int = AHEAD_BYTES
    num_programs: int | None = None
    """That attention's contexts are split into; None = the table's."""

    def __str__(self) -> str:
        programs = "" if self.num_programs is None else f", {self.num_programs} programs"
        return f"overlapped, {self.ahead_bytes >> 10:3} KiB ahead{programs}" if self.overlaps else "ordinary"


class Reading(NamedTuple):
    """One way at one number of rows."""

    rows: int
    way: str
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


def _product(weight: torch.Tensor, rows: int, way: Way, *, is_gated: bool = False) -> Product:
    if rows <= MAX_FEW_TOKENS_ON_CARD:
        sizes = product_sizes(*weight.shape, is_gated=is_gated)
        return few_tokens_body(
            weight, None, sizes, is_gated=is_gated, overlaps=way.overlaps, ahead_bytes=way.ahead_bytes
        )
    if not is_gated:
        return lambda x: F.linear(x, weight)
    gate = silu_mul_body(INNER, overlaps=way.overlaps)
    return lambda x: gate(F.linear(x, weight))


def step_of(weights: Weights, stage: Stage, way: Way) -> Callable[[], object]:
    """All kernels of a step, launched one way, as models/decoder.py orders them."""
    rows, heads = stage.shape.rows, stage.heads
    normalise = rms_norm_body(weights.norm, EPS, overlaps=way.overlaps)
    norms = HeadNorms(weights.head_norm, weights.head_norm, EPS)
    rotate = rotate_and_store_body(heads, norms, overlaps=way.overlaps)
    sizes = decode_sizes(heads.head_dim, stage.caches[0].keys.element_size())
    sizes = sizes._replace(num_programs=way.num_programs or sizes.num_programs)
    attention = CardAttention(heads, heads.head_dim**-0.5, None, decode=sizes, overlaps=way.overlaps)
    layers = [
        {name: _product(weight, rows, way, is_gated=name == "gate_up") for name, weight in layer.items()}
        for layer in weights.layers
    ]
    head = _product(weights.head, rows, way)
    place = stage.qkv.device
    first = torch.randn((rows, HIDDEN), dtype=DTYPE, device=place)
    angles, slots = torch.randn((rows, heads.head_dim), device=place), torch.arange(rows, device=place)

    def step() -> object:
        plan = attention.plan(stage.row_starts, stage.context_lens, stage.tables, stage.bounds)
        hidden, residual = first, torch.zeros_like(first)
        for index, products in enumerate(layers):
            kv = stage.caches[index % len(stage.caches)]
            qkv = products["qkv"](normalise(hidden, residual))
            rotate(qkv, angles, slots, kv)
            attended = products["o"](attention(qkv, kv, plan))
            hidden = products["down"](products["gate_up"](normalise(attended, residual)))
        return head(normalise(hidden, residual))

    return step


def ways(ahead: list[int], programs: list[int]) -> Iterator[Way]:
    """Ordinary first, then each amount ahead, then each number of programs."""
    yield Way(overlaps=False)
    yield from (Way(overlaps=True, ahead_bytes=kib << 10) for kib in ahead)
    yield from (Way(overlaps=True, num_programs=num) for num in programs)


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading, all ways in turn, shown as they come."""
    weights = Weights(device.torch_device)
    kv_dtype = FP8 if asked.fp8_kv else DTYPE
    readings = []
    for rows in asked.rows:
        stage = Stage(Shape(rows, asked.context, 1), MODELS["qwen3-8b"], kv_dtype, device.torch_device)
        steps = {way: step_of(weights, stage, way) for way in ways(asked.ahead, asked.programs)}
        times: dict[Way, list[float]] = {way: [] for way in steps}
        for _ in range(ROUNDS):
            for way, step in steps.items():
                times[way].append(device.replay_ms(step))
        for way, found in times.items():
            readings.append(Reading(rows, str(way), min(found), tuple(found))._asdict())
            shown = "  ".join(f"{ms:.3f}" for ms in found)
            print(f"{rows:4} rows x {asked.context} tokens  {way!s:42} {min(found):7.3f} ms   ({shown})", flush=True)
    return {"chain": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Time a Qwen3-8B decode step's kernels, launched in several ways.")
    parser.add_argument("--rows", type=int, nargs="+", default=(1, 32, 256), help="rows of the steps (1 32 256)")
    parser.add_argument("--context", type=int, default=640, help="tokens of each row (640)")
    parser.add_argument("--ahead", type=int, nargs="+", default=(0, 16, 32, 64), help="KiB brought near (0 16 32 64)")
    parser.add_argument("--programs", type=int, nargs="*", default=(264,), help="that attention is split into (264)")
    parser.add_argument("--fp8-kv", action="store_true", help="keys and values in FP8")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
