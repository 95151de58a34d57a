"""Products with packed 4-bit weights on a card, by shape: torch's bf16 products against every body and cut.

    python -m threefold.bench.kernels_int4 [--sweep] --json FILE

Without --sweep, the cuts of kernels/triton/int4_tables.py; with it, others beside them. What it finds belongs there.
Each product is captured over several copies of its weight, so that none of it lies in the cache when its turn comes.
Bodies are compiled beforehand, by several processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from threefold.bench.kernels_command import run_kernels
from threefold.bench.kernels_products import DTYPE, SHAPES, mean_us, num_copies, plain_us, plain_weights
from threefold.kernels.int4 import VALUES_PER_UNIT, PackedInt4
from threefold.kernels.linear import Product
from threefold.kernels.triton.int4 import tiled_body
from threefold.kernels.triton.int4_dequantize import dequantizing_body
from threefold.kernels.triton.int4_tables import (
    MAX_FEW_TOKENS,
    PIECE_BYTES,
    FewSizes,
    Int4Sizes,
    int4_sizes,
    likely_splits,
)
from threefold.kernels.triton.int4_wide import wide_body
from threefold.kernels.triton.int4_wide_tables import WideSizes, likely_wide
from threefold.runner.device import CudaDevice

TOKENS = (1, 32, 64, 128, 256, 512, 1024, 2048)
GROUP_SIZE, UNITS = 128, 64
MOST_ERROR = 0.02
"""From the dequantised product, of its norm; a body that is further off is not counted."""
LEAST_DEQUANTISED = 512
"""Tokens from which on dequantising first is measured."""
FEW_SWEEP = {  # most tokens -> cuts
    8: ((8, 16, 1, 6), (8, 16, 2, 3), (8, 16, 2, 5), (8, 16, 4, 2), (8, 16, 4, 3), (8, 16, 8, 2), (8, 16, 8, 3),
        (8, 16, 16, 2), (8, 32, 2, 3), (8, 32, 4, 2), (8, 32, 4, 3), (8, 32, 8, 2), (8, 16, 4, 3, 2)),
    16: ((16, 16, 4, 2), (16, 16, 4, 3), (16, 16, 8, 2), (16, 16, 2, 4), (16, 32, 2, 3), (16, 32, 4, 2),
         (16, 32, 4, 3), (16, 16, 4, 3, 2)),
    32: ((16, 16, 4, 3), (16, 32, 4, 3), (16, 16, 8, 2), (32, 16, 2, 3), (32, 16, 4, 2), (32, 16, 4, 3), (32, 16, 8, 2),
         (32, 32, 1, 4), (32, 32, 2, 3), (32, 32, 4, 2), (32, 64, 2, 2), (32, 32, 4, 2, 2)),
}  # fmt: skip
SWEEP = {  # most tokens -> cuts, each with the splits that seem best
    8: ((8, 64, 64, 4, 4), (8, 128, 64, 8, 3)),
    16: ((16, 64, 64, 4, 4), (16, 128, 64, 8, 3)),
    32: ((32, 64, 64, 4, 4), (32, 128, 64, 8, 3)),
    64: ((64, 64, 32, 4, 4), (64, 64, 64, 4, 3), (64, 128, 32, 8, 4), (64, 128, 64, 8, 3), (64, 128, 32, 4, 4)),
    128: ((128, 128, 32, 8, 3),),
}  # fmt: skip
WIDE_TRIED = 4
SPLITS_TRIED = 2
_FEW_PROGRAMS = 264
"""Two a multiprocessor."""
PIECES = tuple(mib << 20 for mib in (PIECE_BYTES >> 20, 16, 64))
_COMPILERS = 12
"""Processes; each holds a card's context and one weight."""
Cut = FewSizes | Int4Sizes | WideSizes
NAMES: dict[type[Cut], str] = {FewSizes: "few", Int4Sizes: "tiles", WideSizes: "wide"}


class Shape(NamedTuple):
    """One product of a model."""

    num_outputs: int
    num_inputs: int
    is_gated: bool

    @property
    def num_results(self) -> int:
        """Numbers that come out for a token."""
        return self.num_outputs // 2 if self.is_gated else self.num_outputs


def random_packed(shape: Shape, device: torch.device) -> PackedInt4:
    """Random bits, scales and zeros that leave activations about as large as they were."""
    num_chunks = shape.num_inputs // (VALUES_PER_UNIT * UNITS)
    units = torch.randint(-(1 << 15), 1 << 15, (num_chunks, shape.num_outputs, UNITS), device=device).to(torch.int16)
    pair = torch.tensor([0.2 * shape.num_inputs**-0.5, 128.0 + 8.0], dtype=DTYPE).view(torch.int32)
    scale_zeros = pair.to(device).repeat(shape.num_inputs // GROUP_SIZE, shape.num_outputs)
    return PackedInt4(units, scale_zeros, GROUP_SIZE, shape.num_inputs, DTYPE)


def bodies_of(
    shape: Shape, num_tokens: int, *, is_swept: bool
) -> Iterator[tuple[str, Callable[[PackedInt4], Product]]]:
    """Every body to measure, the table's first: its name, and what makes it for a weight."""
    pieces = PIECES if is_swept else PIECES[:1]
    if _chosen(shape, num_tokens) is None:
        yield from _dequantised(shape, pieces[:1])
        pieces = pieces[1:]
    for sizes in _cuts(shape, num_tokens, is_swept=is_swept):
        yield f"{NAMES[type(sizes)]} {tuple(sizes)}", partial(_body, sizes=sizes, is_gated=shape.is_gated)
    if num_tokens >= LEAST_DEQUANTISED:
        yield from _dequantised(shape, pieces)


def _dequantised(shape: Shape, pieces: Sequence[int]) -> Iterator[tuple[str, Callable[[PackedInt4], Product]]]:
    for piece_bytes in pieces:
        make = partial(dequantizing_body, bias=None, is_gated=shape.is_gated, piece_bytes=piece_bytes)
        yield f"dequantised, pieces of {piece_bytes >> 20} MiB", make


def _body(weight: PackedInt4, sizes: Cut, *, is_gated: bool) -> Product:
    if isinstance(sizes, WideSizes):
        wide = wide_body(weight, None, is_gated=is_gated)
        return lambda x: wide(x, sizes)
    tiled = tiled_body(weight, None, is_gated=is_gated)
    return lambda x: tiled(x, sizes)


def _chosen(shape: Shape, num_tokens: int) -> Cut | None:
    """The table's cut; None = dequantised first."""
    num_chunks = shape.num_inputs // (VALUES_PER_UNIT * UNITS)
    return int4_sizes(num_tokens, shape.num_outputs, num_chunks, is_gated=shape.is_gated, can_be_wide=True)


def _cuts(shape: Shape, num_tokens: int, *, is_swept: bool) -> list[Cut]:
    num_chunks = shape.num_inputs // (VALUES_PER_UNIT * UNITS)
    chosen = _chosen(shape, num_tokens)
    cuts: list[Cut] = [] if chosen is None else [chosen]
    if is_swept:
        few = next((cuts for most, cuts in FEW_SWEEP.items() if num_tokens <= most), ())
        cuts += [FewSizes(*cut) for cut in few if cut[2] <= num_chunks]
        some = next((cuts for most, cuts in SWEEP.items() if num_tokens <= most), ())
        cuts += [cut for sizes in some for cut in _with_splits(Int4Sizes(*sizes), shape, num_tokens, num_chunks)]
        if num_tokens > MAX_FEW_TOKENS:
            cuts += likely_wide(num_tokens, shape.num_outputs, num_chunks, is_gated=shape.is_gated)[:WIDE_TRIED]
    return list(dict.fromkeys(cuts))


def _with_splits(sizes: Int4Sizes, shape: Shape, num_tokens: int, num_chunks: int) -> list[Int4Sizes]:
    tiles = -(-shape.num_outputs // sizes.block_rows) * -(-num_tokens // sizes.block_tokens)
    if num_tokens <= MAX_FEW_TOKENS:  # what counts is how many are under way
        most = max(1, _FEW_PROGRAMS // tiles)
        found = [most, max(1, most // 2)]
    else:
        found = likely_splits(tiles, num_chunks)[:SPLITS_TRIED]
    return [sizes._replace(num_splits=splits) for splits in found]


def compile_all(names: list[str], asked: argparse.Namespace) -> None:
    """Bring every body into the compiler's cache on disk."""
    work = [(name, num_tokens) for num_tokens in asked.tokens for name in names]
    with ProcessPoolExecutor(_COMPILERS, mp_context=get_context("spawn")) as pool:
        shares = [
            pool.submit(compile_some, *each, is_swept=asked.sweep, share=share) for each in work for share in (0, 1)
        ]
        for share in shares:
            share.result()


def compile_some(name: str, num_tokens: int, *, is_swept: bool, share: int) -> None:
    """Run every second body once, those of even or odd place; what cannot run shows when it is measured."""
    device, shape = CudaDevice(), Shape(*SHAPES[name])
    weight = random_packed(shape, device.torch_device)
    x = torch.zeros((num_tokens, shape.num_inputs), dtype=DTYPE, device=device.torch_device)
    with torch.inference_mode():
        for _, make in list(bodies_of(shape, num_tokens, is_swept=is_swept))[share::2]:
            with suppress(Exception):
                make(weight)(x)
                device.synchronize()


def measure_shape(name: str, num_tokens: int, device: CudaDevice, *, is_swept: bool) -> dict[str, Any]:
    """Torch's time on bf16 weights and that of each body, in microseconds."""
    shape, place = Shape(*SHAPES[name]), device.torch_device
    x = torch.randn((num_tokens, shape.num_inputs), dtype=DTYPE, device=place)
    plain = plain_weights(shape.num_outputs, shape.num_inputs, place)
    bf16_us = plain_us(plain, x, device, is_gated=shape.is_gated)
    packed_bytes = shape.num_outputs * shape.num_inputs // 2
    weights = [random_packed(shape, place) for _ in range(num_copies(packed_bytes))]
    right = dequantizing_body(weights[0], None, is_gated=shape.is_gated)(x).float()
    found = []
    for label, make in bodies_of(shape, num_tokens, is_swept=is_swept):
        bodies = [make(weight) for weight in weights]
        try:
            error = ((bodies[0](x).float() - right).norm() / right.norm()).item()
            us = mean_us(bodies, x, device)
        except Exception as failure:  # noqa: BLE001 (what this card cannot take is a finding, whatever Triton raises)
            print(f"{name:>13} {num_tokens:5} tokens  {label}: {type(failure).__name__}", flush=True)
            continue
        if not error <= MOST_ERROR:
            print(f"{name:>13} {num_tokens:5} tokens  {label}: wrong by {error:.3f}", flush=True)
            continue
        found.append({"us": us, "body": label, "ratio": bf16_us / us})
    return {"name": name, "tokens": num_tokens, "bf16_us": bf16_us, "bodies": found}


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading of the shapes asked for, shown as it comes, and their sums by number of tokens."""
    readings = []
    chunk = VALUES_PER_UNIT * UNITS
    names = [name for name, (_, inputs, _) in SHAPES.items() if name.startswith(asked.shapes) and inputs % chunk == 0]
    names = [name for name in names if not name.endswith("head")]  # left plain by all checkpoints
    compile_all(names, asked)
    for num_tokens in asked.tokens:
        ours = theirs = 0.0
        for name in names:
            one = measure_shape(name, num_tokens, device, is_swept=asked.sweep)
            readings.append(one)
            ranked = sorted(one["bodies"], key=lambda body: float(body["us"]))
            best = "   ".join(f"{body['us']:.1f} us {body['body']}" for body in ranked[:3])
            first = one["bodies"][0]["us"]
            print(
                f"{name:>13} {num_tokens:5} tokens  bf16 {one['bf16_us']:6.1f} us  table {first:6.1f} us   best {best}",
                flush=True,
            )
            theirs += one["bf16_us"]
            ours += first
        print(f"{'a layer':>13} {num_tokens:5} tokens  bf16 {theirs:6.1f} us  table {ours:6.1f} us", end="")
        print(f"  {theirs / ours:.2f} x", flush=True)
    return {"products": readings}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure products with packed 4-bit weights on a card.")
    parser.add_argument("--shapes", default="8b", help="only shapes whose names begin so (8b)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens")
    parser.add_argument("--sweep", action="store_true", help="other cuts than the table's, too")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
