"""FP8 products on a card, by shape and number of tokens: which body, in which cut.

    python -m threefold.bench.kernels_fp8 --shapes 8b --tokens 1 32 --json FILE        a few tokens: cuts, against bf16
    python -m threefold.bench.kernels_fp8 --shapes 8b --tokens 64 256 8192             many tokens: bodies, and rounding

Each product is captured over several copies of its weight, as in kernels_products.py. What it finds belongs into
kernels/triton/tables.py and MAX_FEW_TOKENS_FP8.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from triton.runtime.errors import TritonError

from threefold.bench.kernels_command import run_kernels
from threefold.bench.kernels_products import DTYPE, SHAPES, SPREAD_BYTES, mean_us
from threefold.kernels.activation import silu_mul
from threefold.kernels.fp8 import Fp8Inputs, Fp8Weight, quantise_outputs
from threefold.kernels.linear import product
from threefold.kernels.triton.fp8 import few_tokens_fp8_body
from threefold.kernels.triton.fp8_many import many_tokens_fp8
from threefold.kernels.triton.fp8_product import CardFp8Product
from threefold.kernels.triton.fp8_rows import round_rows_body
from threefold.kernels.triton.tables import ManySizes, ProductSizes
from threefold.runner.device import CudaDevice

TOKENS = (1, 32, 64, 256, 8192)
BLOCK = (128, 128)
MOST_FEW = 64
"""Up to so many tokens the cuts of the body for a few are tried."""
FEW_CUTS = tuple(
    ProductSizes(*sizes)
    for sizes in (
        (16, 256, 2, 5), (16, 512, 2, 4), (16, 512, 4, 4), (16, 1024, 4, 3), (32, 128, 4, 6), (32, 256, 4, 4),
        (32, 512, 4, 3), (64, 128, 4, 5), (64, 256, 4, 3),
    )
)  # fmt: skip
FEW_BLOCK_CUTS = tuple(
    ProductSizes(*sizes) for sizes in ((16, 128, 2, 6), (16, 128, 4, 6), (32, 128, 4, 5), (32, 128, 2, 6))
)
MANY_CUTS = tuple(
    ManySizes(*sizes)
    for sizes in (
        (64, 64, 128, 4, 4), (64, 128, 128, 4, 4), (64, 256, 128, 8, 3), (128, 128, 128, 4, 4), (128, 128, 128, 8, 3),
        (128, 256, 128, 8, 3),
    )
)  # fmt: skip
MANY_BLOCK_CUTS = tuple(sizes for sizes in MANY_CUTS if sizes.block_m * sizes.block_n <= sizes.num_warps * 32 * 64)
"""Those with at most 64 sums a thread: there is a step's own beside them, and more do not fit into registers."""
Body = Callable[[torch.Tensor], Any]


def measure_shape(name: str, num_tokens: int, device: CudaDevice) -> dict[str, Any]:
    """Times of all bodies that may serve one shape at one number of tokens, fastest first."""
    num_outputs, num_inputs, is_gated = SHAPES[name]
    place = device.torch_device
    copies = max(2, min(24, SPREAD_BYTES // (num_outputs * num_inputs)))
    plain = [torch.randn((num_outputs, num_inputs), dtype=DTYPE, device=place) for _ in range(copies)]
    x = torch.randn((num_tokens, num_inputs), dtype=DTYPE, device=place)
    found: list[dict[str, Any]] = []
    for body_name, bodies in _bodies(plain, num_tokens, is_gated):
        try:
            us = mean_us(bodies, x, device)
        except (RuntimeError, ValueError, TritonError) as error:  # a cut that does not fit
            found.append({"body": body_name, "us": None, "error": str(error).strip().split("\n")[0][:120]})
        else:
            found.append({"body": body_name, "us": us, "gb_s": num_outputs * num_inputs / us / 1e3})
    return {"name": name, "tokens": num_tokens, "bodies": sorted(found, key=lambda one: one["us"] or float("inf"))}


def _bodies(plain: list[torch.Tensor], num_tokens: int, is_gated: bool) -> Iterator[tuple[str, list[Body]]]:
    yield "bf16", [product(weight, None, is_gated=is_gated) for weight in plain]
    by_output, by_block = [quantise_outputs(weight) for weight in plain], [_by_block(weight) for weight in plain]
    yield from _whole_products("by output", by_output, is_gated)
    yield from _whole_products("by block", by_block, is_gated)
    if num_tokens <= MOST_FEW:
        yield from _few("few by output", by_output, FEW_CUTS, is_gated)
        yield from _few("few by block", by_block, FEW_BLOCK_CUTS, is_gated)
    yield from _many("by output", by_output, MANY_CUTS)
    yield from _many("by block", by_block, MANY_BLOCK_CUTS)
    if num_tokens > MOST_FEW:
        gate = silu_mul(len(plain[0]) // 2, DTYPE, plain[0].device) if is_gated else _as_it_is
        yield "by block, dequantised", [partial(_dequantised, weight, gate) for weight in by_block]
    yield "rounding alone", [round_rows_body(Fp8Inputs())] * len(plain)


def _whole_products(name: str, weights: list[Fp8Weight], is_gated: bool) -> Iterator[tuple[str, list[Body]]]:
    made = [CardFp8Product(one, None, is_gated=is_gated, dtype=DTYPE, inputs=Fp8Inputs()) for one in weights]
    yield f"as built, {name}", list(made)
    yield f"as built for many, {name}", [partial(_for_many, one) for one in made]


def _few(
    name: str, weights: list[Fp8Weight], cuts: tuple[ProductSizes, ...], is_gated: bool
) -> Iterator[tuple[str, list[Body]]]:
    for sizes in cuts:
        yield (
            f"{name} {tuple(sizes)}",
            [few_tokens_fp8_body(*one, None, sizes, is_gated=is_gated) for one in weights],
        )


def _many(name: str, weights: list[Fp8Weight], cuts: tuple[ManySizes, ...]) -> Iterator[tuple[str, list[Body]]]:
    """Triton's products of FP8 with FP8, rounding included, without the gate."""
    for sizes in cuts:
        yield f"triton many {name} {tuple(sizes)}", [partial(_triton_many, one, sizes) for one in weights]


def _for_many(multiply: CardFp8Product, x: torch.Tensor) -> torch.Tensor:
    return multiply.multiply_many(x)


def _triton_many(weight: Fp8Weight, sizes: ManySizes, x: torch.Tensor) -> torch.Tensor:
    width = x.shape[1] if weight.block_size is None else weight.block_size[1]
    rounded = round_rows_body(Fp8Inputs())(x.view(-1, width))
    scales = rounded.scales.view(len(x), -1)
    return many_tokens_fp8(rounded.values.view(x.shape), scales, *weight, None, sizes, DTYPE)


def _dequantised(weight: Fp8Weight, gate: Body, x: torch.Tensor) -> Any:
    return gate(F.linear(x, weight.dequantised(DTYPE)))


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _by_block(weight: torch.Tensor) -> Fp8Weight:
    """Any scales will do for a time; these are those of the largest numbers."""
    outputs, inputs = (size // block for size, block in zip(weight.shape, BLOCK, strict=True))
    scales = torch.full((outputs, inputs), 0.01, dtype=torch.float32, device=weight.device)
    return Fp8Weight((weight * 50).to(torch.float8_e4m3fn), scales, BLOCK)


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading of the shapes asked for, shown as it comes."""
    readings = []
    for name in (
        name for name in SHAPES if name.startswith(asked.shapes) and not any(s % 128 for s in SHAPES[name][:2])
    ):
        for num_tokens in asked.tokens:
            one = measure_shape(name, num_tokens, device)
            readings.append(one)
            print(f"{name}, {num_tokens} tokens", flush=True)
            for body in one["bodies"]:
                time = f"{body['us']:9.1f} us {body['gb_s']:6.0f} GB/s" if body["us"] else body["error"]
                print(f"    {body['body']:<48} {time}", flush=True)
    return {"fp8": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Find the best bodies and cuts for FP8 products on a card.")
    parser.add_argument("--shapes", default="8b", help="only shapes whose names begin so (8b)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens (1 32 64 256 8192)")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
