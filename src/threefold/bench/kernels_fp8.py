"""FP8 products on a card, by shape and number of tokens: torch's bf16 products against every body and cut.

    python -m threefold.bench.kernels_fp8 [--sweep] --json FILE

Without --sweep, the cuts of kernels/triton/fp8_tables.py; with it, others beside them. What it finds belongs there and
into MAX_FEW_TOKENS_FP8. Weights have scales by output. Each product is captured over several copies of its weight, so
that none of it lies in the cache when its turn comes. Bodies are compiled beforehand, by several processes.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from threefold.bench.kernels_command import run_kernels
from threefold.bench.kernels_fp8_cuts import FEW_SWEEP, TILE_SWEEP, split_cuts
from threefold.bench.kernels_products import DTYPE, SHAPES, mean_us, num_copies, plain_us, plain_weights
from threefold.kernels.activation import silu_mul, silu_mul_reference
from threefold.kernels.fp8 import Fp8Inputs, Fp8Weight, Rounded, quantise_outputs
from threefold.kernels.triton.fp8 import few_tokens_fp8_body
from threefold.kernels.triton.fp8_product import CardFp8Product
from threefold.kernels.triton.fp8_rows import round_rows_body
from threefold.kernels.triton.fp8_tables import FewSizes, TileSizes
from threefold.kernels.triton.fp8_tile import tile_fp8_body
from threefold.runner.device import CudaDevice

TOKENS = (1, 6, 16, 32, 64, 256)
MOST_ERROR = 0.04
"""Of the norm of what the same operands give in float32; a body that is further off is not counted."""
SHOWN = 5
_COMPILERS, _SHARES = 15, 4
"""Processes, and those that share a shape's bodies; each holds a card's context and one weight."""


class Sample(NamedTuple):
    """What bodies are fed."""

    x: torch.Tensor
    rounded: Rounded


Body = Callable[[torch.Tensor], Any]
Maker = Callable[[Fp8Weight, Sample], Body]


def table_bodies(is_gated: bool) -> Iterator[tuple[str, Maker]]:
    """What an engine runs, with x rounded by an op of its own where it is, and rounded beforehand."""

    def make(weight: Fp8Weight, sample: Sample, *, is_rounded: bool) -> Body:
        multiply = CardFp8Product(weight, None, is_gated=is_gated, dtype=DTYPE, inputs=Fp8Inputs())
        return (lambda _: multiply(sample.rounded)) if is_rounded else multiply

    yield "table", partial(make, is_rounded=False)
    yield "table, rounded", partial(make, is_rounded=True)


def swept_bodies(name: str, num_tokens: int) -> Iterator[tuple[str, Maker]]:
    """Every body and cut that may serve one shape."""
    num_rows, num_inputs, is_gated = SHAPES[name]

    def few(weight: Fp8Weight, _: Sample, *, sizes: FewSizes) -> Body:
        multiply = few_tokens_fp8_body(*weight, None, is_gated=is_gated)
        return lambda x: multiply(x, sizes)

    def tile(weight: Fp8Weight, sample: Sample, *, sizes: TileSizes) -> Body:
        multiply = tile_fp8_body(weight, None, is_gated=is_gated, dtype=DTYPE)
        return lambda _: multiply(sample.rounded, sizes)

    def by_torch(weight: Fp8Weight, sample: Sample) -> Body:
        gate = silu_mul(num_rows // 2, DTYPE, weight.values.device) if is_gated else None
        return lambda _: _multiply_by_torch(weight, sample.rounded, gate)

    for sizes in FEW_SWEEP.get(_tile_of(num_tokens), ()):
        yield f"few {tuple(sizes)}", partial(few, sizes=sizes)
    for cut in TILE_SWEEP.get(_tile_of(num_tokens), ()):
        for cut_sizes in split_cuts(cut, num_rows, num_inputs, num_tokens):
            yield f"tile {tuple(cut_sizes)}", partial(tile, sizes=cut_sizes)
    if num_tokens > min(FEW_SWEEP):
        yield "torch", by_torch


def _tile_of(num_tokens: int) -> int:
    return next((most for most in sorted({*FEW_SWEEP, *TILE_SWEEP}) if num_tokens <= most), 0)


def _multiply_by_torch(weight: Fp8Weight, x: Rounded, gate: Body | None) -> Any:
    out = torch._scaled_mm(
        x.values,
        weight.values.t(),
        scale_a=x.scales[:, None],
        scale_b=weight.scales[None, :],
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return out if gate is None else gate(out)


def _sample(num_inputs: int, num_tokens: int, device: CudaDevice) -> Sample:
    x = torch.randn((num_tokens, num_inputs), dtype=DTYPE, device=device.torch_device)
    return Sample(x, round_rows_body(Fp8Inputs())(x))


def _weight(name: str, device: CudaDevice) -> Fp8Weight:
    num_rows, num_inputs, _ = SHAPES[name]
    plain = torch.randn((num_rows, num_inputs), dtype=DTYPE, device=device.torch_device)
    return quantise_outputs(plain * num_inputs**-0.5)


def compile_all(names: list[str], tokens: tuple[int, ...]) -> None:
    """Bring every body of the sweep into the compiler's cache on disk."""
    with ProcessPoolExecutor(_COMPILERS, mp_context=get_context("spawn")) as pool:
        shares = [pool.submit(compile_some, name, tokens, share) for name in names for share in range(_SHARES)]
        for share in shares:
            share.result()


def compile_some(name: str, tokens: tuple[int, ...], share: int) -> None:
    """Run a share of the bodies once; what cannot run shows when it is measured."""
    device = CudaDevice()
    bodies = {label: (maker, num) for num in tokens for label, maker in swept_bodies(name, num)}
    weight = _weight(name, device)
    with torch.inference_mode():
        for maker, num_tokens in list(bodies.values())[share::_SHARES]:
            sample = _sample(SHAPES[name][1], num_tokens, device)
            with suppress(Exception):
                maker(weight, sample)(sample.x)
                device.synchronize()


def measure_shape(name: str, num_tokens: int, device: CudaDevice, *, is_swept: bool) -> dict[str, Any]:
    """Torch's time on bf16 weights and that of each body, in microseconds, with its error."""
    num_rows, num_inputs, is_gated = SHAPES[name]
    sample = _sample(num_inputs, num_tokens, device)
    weights = [_weight(name, device) for _ in range(num_copies(num_rows * num_inputs))]
    bodies = list(table_bodies(is_gated)) + (list(swept_bodies(name, num_tokens)) if is_swept else [])
    rights = {is_rounded: _right(weights[0], sample, is_gated, is_rounded) for is_rounded in (False, True)}
    found = []
    for label, maker in bodies:
        made = [maker(weight, sample) for weight in weights]
        try:
            got = made[0](sample.x).float()
            error = min(_relative(got, right) for right in rights.values())
            us = mean_us(made, sample.x, device)
        except Exception as failure:  # noqa: BLE001 (what this card cannot take is a finding, whatever Triton raises)
            print(f"{name:>13} {num_tokens:5} tokens  {label}: {type(failure).__name__}", flush=True)
            continue
        if not error <= MOST_ERROR:
            print(f"{name:>13} {num_tokens:5} tokens  {label}: wrong by {error:.3f}", flush=True)
        found.append({"us": us, "body": label, "error": error})
    rounding_us = mean_us([round_rows_body(Fp8Inputs())] * len(weights), sample.x, device)
    plain = plain_weights(num_rows, num_inputs, device.torch_device)
    bf16_us = plain_us(plain, sample.x, device, is_gated=is_gated)
    return {"name": name, "tokens": num_tokens, "bf16_us": bf16_us, "rounding_us": rounding_us, "bodies": found}


def _right(weight: Fp8Weight, sample: Sample, is_gated: bool, is_rounded: bool) -> torch.Tensor:
    """What the same operands give in float32."""
    x = sample.rounded.values.float() * sample.rounded.scales[:, None] if is_rounded else sample.x.float()
    out = x @ weight.dequantised(torch.float32).T
    return silu_mul_reference(out) if is_gated else out


def _relative(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got - right).norm() / right.norm())


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading of the shapes asked for, shown as it comes."""
    readings = []
    names = [name for name in SHAPES if name.startswith(asked.shapes) and not (asked.sweep and name.endswith("head"))]
    if asked.sweep:
        compile_all(names, tuple(asked.tokens))
    gc.freeze()  # each capture collects garbage, and would look through all of torch for it
    for name in names:
        for num_tokens in asked.tokens:
            one = measure_shape(name, num_tokens, device, is_swept=asked.sweep)
            readings.append(one)
            table, swept = one["bodies"][:2], sorted(one["bodies"][2:], key=lambda body: float(body["us"]))
            print(
                f"{name:>13} {num_tokens:5} tokens  bf16 {one['bf16_us']:6.1f} us, rounding {one['rounding_us']:.1f}",
                *(f"{body['us']:.1f} {body['body']} ({body['error']:.4f})" for body in table + swept[:SHOWN]),
                sep="   ",
                flush=True,
            )
    return {"fp8": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure FP8 products on a card.")
    parser.add_argument("--shapes", default="8b", help="only shapes whose names begin so (8b)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens")
    parser.add_argument("--sweep", action="store_true", help="other cuts than the table's, too; without the head")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
