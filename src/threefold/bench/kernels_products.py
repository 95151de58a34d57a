"""Products of a few tokens on a card, by shape: torch's against the Triton body in many cuts.

    python -m threefold.bench.kernels_products --json FILE

Each product is captured over several copies of its weight, so that none of it lies in the cache when its turn comes.
What it finds belongs into kernels/triton/tables.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.bench.kernels_command import run_kernels
from threefold.kernels.activation import silu_mul
from threefold.kernels.triton.product import FewTokens
from threefold.kernels.triton.tables import ProductSizes
from threefold.runner.device import CudaDevice

SHAPES = {  # (outputs, inputs, gated)
    "8b qkv": (6144, 4096, False),
    "8b o": (4096, 4096, False),
    "8b gate_up": (24576, 4096, True),
    "8b down": (4096, 12288, False),
    "8b head": (151936, 4096, False),
    "0.6b qkv": (4096, 1024, False),
    "0.6b o": (1024, 2048, False),
    "0.6b gate_up": (6144, 1024, True),
    "0.6b down": (1024, 3072, False),
    "135m qkv": (960, 576, False),
    "135m o": (576, 576, False),
    "135m gate_up": (3072, 576, True),
    "135m down": (576, 1536, False),
}
TOKENS = (1, 16, 32)
CUTS = tuple(
    ProductSizes(*sizes)
    for sizes in (
        (16, 64, 1, 8), (16, 128, 1, 5), (16, 128, 1, 8), (16, 256, 1, 4), (16, 256, 1, 6), (16, 256, 2, 4),
        (16, 512, 2, 3), (32, 64, 2, 6), (32, 128, 2, 4), (32, 128, 2, 6), (32, 256, 2, 4), (32, 256, 4, 3),
        (64, 64, 4, 5), (64, 128, 4, 4), (16, 128, 4, 3, 4), (16, 128, 4, 4, 4), (16, 64, 4, 5, 4),
    )
)  # fmt: skip
"""What is tried."""
SPREAD_BYTES = 256 << 20
"""Weights of a product's copies together: several times the card's cache."""
MOST_COPIES = 24
DTYPE = torch.bfloat16


def measure_shape(name: str, num_tokens: int, device: CudaDevice) -> dict[str, Any]:
    """Torch's time and the best cuts of one shape at one number of tokens."""
    num_outputs, num_inputs, is_gated = SHAPES[name]
    place = device.torch_device
    weights = plain_weights(num_outputs, num_inputs, place)
    x = torch.randn((num_tokens, num_inputs), dtype=DTYPE, device=place)
    num_bytes = num_outputs * num_inputs * 2
    torch_us = plain_us(weights, x, device, is_gated=is_gated)
    found = []
    for sizes in CUTS:
        bodies = [FewTokens(weight, None, always(sizes), is_gated=is_gated) for weight in weights]
        us = mean_us(bodies, x, device)
        found.append((us, tuple(sizes)))
    found.sort()
    return {
        "name": name,
        "tokens": num_tokens,
        "torch_us": torch_us,
        "torch_gb_s": num_bytes / torch_us / 1e3,
        "best": [{"us": us, "gb_s": num_bytes / us / 1e3, "sizes": sizes} for us, sizes in found[:4]],
    }


def always(sizes: ProductSizes) -> Callable[[int], ProductSizes]:
    """One cut whatever the number of tokens."""
    return lambda _: sizes


def num_copies(num_bytes: int) -> int:
    """How many weights of so many bytes run in turn, so that none is found in the card's cache."""
    return max(2, min(MOST_COPIES, SPREAD_BYTES // num_bytes))


def plain_weights(num_outputs: int, num_inputs: int, place: torch.device) -> list[torch.Tensor]:
    """Different weights of one shape."""
    size = (num_outputs, num_inputs)
    return [torch.randn(size, dtype=DTYPE, device=place) for _ in range(num_copies(num_outputs * num_inputs * 2))]


def plain_us(weights: Sequence[torch.Tensor], x: torch.Tensor, device: CudaDevice, *, is_gated: bool) -> float:
    """Time of torch's product with one of the weights, and of the gate behind it."""
    gate = silu_mul(len(weights[0]) // 2, DTYPE, x.device) if is_gated else None

    def run() -> None:
        for weight in weights:
            out = F.linear(x, weight)
            if gate is not None:
                gate(out)

    return device.replay_ms(run) / len(weights) * 1e3


def mean_us(bodies: Sequence[Callable[[torch.Tensor], Any]], x: torch.Tensor, device: CudaDevice) -> float:
    """Time of one of the bodies, which run one behind another in a captured graph."""

    def run_all() -> None:
        for body in bodies:
            body(x)

    return device.replay_ms(run_all) / len(bodies) * 1e3


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading of the shapes asked for, shown as it comes."""
    readings = []
    for name in (name for name in SHAPES if name.startswith(asked.shapes)):
        for num_tokens in asked.tokens:
            one = measure_shape(name, num_tokens, device)
            readings.append(one)
            best = "  ".join(f"{cut['us']:.1f} us {cut['sizes']}" for cut in one["best"][:3])
            print(f"{name:>13} {num_tokens:3} tokens  torch {one['torch_us']:6.1f} us   {best}", flush=True)
    return {"products": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Find the best cuts for products of a few tokens on a card.")
    parser.add_argument("--shapes", default="", help="only shapes whose names begin so, such as 8b")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens (1 16 32)")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
