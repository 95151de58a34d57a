"""The small ops of a step on a card, each alone: time, bytes moved, share of what the card can copy.

    python -m threefold.bench.kernels_small --json FILE

Sizes are Qwen3-8B's. Each op is captured several times over into one graph and the graph is timed, so that launching
costs nothing. The copies have inputs of their own: large ones come from memory, small ones from the cache, as they do
in a step. Knows nothing about engines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from threefold.bench.kernels_command import run_kernels
from threefold.kernels.activation import silu_mul
from threefold.kernels.argmax import most_likely_on_device
from threefold.kernels.linear import product
from threefold.kernels.norm import rms_norm
from threefold.runner.device import CudaDevice
from threefold.sample.draw import DeviceFilters, draw_on_device

COPY_GB_S = 4300.0
"""What one H200 copies, reads and writes together."""
HIDDEN, INNER, VOCAB = 4096, 12288, 151_936
LAYERS = 36
PRODUCTS = {"qkv": (6144, HIDDEN), "o": (HIDDEN, 4096), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
"""(outputs, inputs) of one layer's products."""
LIMITS_MS = {
    1: 4.0, 32: 4.2, 64: 4.3, 128: 4.6, 192: 5.6, 256: 6.5, 384: 9.0, 512: 11.8, 768: 17.4, 1024: 24.2, 1536: 34.9,
    2048: 44.8, 4096: 87.9, 8192: 172.0,
}  # fmt: skip
"""All layers' products and the head, ms by tokens, as measured on the card by graph replay."""
SPREAD_BYTES = 256 << 20
"""Inputs of an op's copies together, where they are large: several times the card's cache."""
MAX_COPIES = 64
HEAD_TOKENS = 1024
"""Tokens of a step whose logits are wanted at most: prompts want one each."""
DTYPE = torch.bfloat16


class Reading(NamedTuple):
    """One op at one number of rows."""

    name: str
    rows: int
    us: float
    gb_s: float
    """Of bytes that must be moved at least."""
    share: float
    """Of COPY_GB_S."""


class ProductReading(NamedTuple):
    """All products of a step."""

    tokens: int
    ms: float
    limit_ms: float
    tflop_s: float


class _Case(NamedTuple):
    """An op ready to be timed."""

    name: str
    rows: int
    num_bytes: int
    make: Callable[[], Callable[[], object]]
    """Makes the op with inputs of its own."""


def cases(device: torch.device) -> Iterator[_Case]:
    """Every small op at the sizes that steps have."""
    for rows in (1, 32, 256, 8192):
        yield _Case("norm+residual", rows, rows * HIDDEN * 2 * 4, partial(_norm, rows, device))
        yield _Case("silu*up", rows, rows * INNER * 2 * 3, partial(_silu_mul, rows, device))
    for rows in (1, 32, 256):
        num_bytes = rows * VOCAB * 4
        yield _Case("argmax", rows, num_bytes, partial(_argmax, rows, device))
        yield _Case("torch max", rows, num_bytes, partial(_torch_max, rows, device))
        for top_k, top_p in ((0, 1.0), (50, 1.0), (0, 0.95), (50, 0.95)):
            name = f"draw k={top_k} p={top_p}"
            yield _Case(name, rows, num_bytes, partial(_draw, rows, top_k, top_p, device))


def _norm(rows: int, device: torch.device) -> Callable[[], object]:
    normalise = rms_norm(torch.ones(HIDDEN, dtype=DTYPE, device=device), 1e-6)
    x, residual = torch.randn((2, rows, HIDDEN), dtype=DTYPE, device=device).unbind(0)
    return lambda: normalise(x, residual)


def _silu_mul(rows: int, device: torch.device) -> Callable[[], object]:
    multiply = silu_mul(INNER, DTYPE, device)
    gate_up = torch.randn((rows, 2 * INNER), dtype=DTYPE, device=device)
    return lambda: multiply(gate_up)


def _logits(rows: int, device: torch.device) -> torch.Tensor:
    """Peaked as a language model's are: most tokens far below a few."""
    return torch.randn((rows, VOCAB), device=device) * 3


def _argmax(rows: int, device: torch.device) -> Callable[[], object]:
    logits = _logits(rows, device)
    return lambda: most_likely_on_device(logits)


def _torch_max(rows: int, device: torch.device) -> Callable[[], object]:
    logits = _logits(rows, device)
    return lambda: logits.max(-1)


def _draw(rows: int, top_k: int, top_p: float, device: torch.device) -> Callable[[], object]:
    logits = _logits(rows, device)
    filters = DeviceFilters(
        torch.full((rows,), top_k, dtype=torch.int32, device=device),
        torch.full((rows,), top_p, device=device),
        torch.zeros(rows, device=device),
    )
    temperature = torch.full((rows,), 0.8, device=device)
    uniforms = torch.rand(rows, dtype=torch.float64, device=device)
    return lambda: draw_on_device(logits, temperature, filters, uniforms)


def measure_case(case: _Case, device: CudaDevice) -> Reading:
    """Time of one op."""
    copies = max(2, min(MAX_COPIES, SPREAD_BYTES // case.num_bytes))
    ops = [case.make() for _ in range(copies)]
    us = device.replay_ms(lambda: [op() for op in ops]) / copies * 1e3
    gb_s = case.num_bytes / us / 1e3
    return Reading(case.name, case.rows, us, gb_s, gb_s / COPY_GB_S)


def measure_products(device: CudaDevice) -> Iterator[ProductReading]:
    """All layers' products and the head at growing numbers of tokens."""
    place = device.torch_device
    weights = [torch.randn(shape, dtype=DTYPE, device=place) for _ in range(LAYERS) for shape in PRODUCTS.values()]
    products = [(product(weight, None), weight.shape[1]) for weight in weights]
    head = product(torch.randn((VOCAB, HIDDEN), dtype=DTYPE, device=place), None)
    num_values = sum(weight.numel() for weight in weights)
    for tokens, limit_ms in LIMITS_MS.items():
        inputs = {width: torch.randn((tokens, width), dtype=DTYPE, device=place) for width in (HIDDEN, INNER)}
        last = inputs[HIDDEN][:HEAD_TOKENS]

        def step(inputs: dict[int, torch.Tensor] = inputs, last: torch.Tensor = last) -> None:
            for multiply, width in products:
                multiply(inputs[width])
            head(last)

        ms = device.replay_ms(step)
        flop = 2 * (tokens * num_values + len(last) * VOCAB * HIDDEN)
        yield ProductReading(tokens, ms, limit_ms, flop / ms / 1e9)


def measure_all(device: CudaDevice) -> dict[str, Any]:
    """Every reading, shown as it comes."""
    ops, products = [], []
    for case in cases(device.torch_device):
        op = measure_case(case, device)
        ops.append(op._asdict())
        print(f"{op.name:>16} {op.rows:5} rows {op.us:9.1f} us {op.gb_s:6.0f} GB/s {op.share:7.1%}", flush=True)
    for step in measure_products(device):
        products.append(step._asdict())
        figures = f"{step.ms:8.2f} ms, limit {step.limit_ms:6.1f} ms, {step.tflop_s:5.0f} TFLOP/s"
        print(f"        products {step.tokens:5} tokens {figures}", flush=True)
    return {"ops": ops, "products": products}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Time the small ops and the products of a Qwen3-8B step on a card.")
    run_kernels(parser, lambda _, device: measure_all(device))


if __name__ == "__main__":
    main()
