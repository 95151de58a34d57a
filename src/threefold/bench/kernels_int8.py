"""Int8 tables on a card: the head's product in many cuts against bf16, and looking rows up.

    python -m threefold.bench.kernels_int8 [--rows 151936 --width 4096] --json FILE

Each is captured over two tables, so that none of it lies in the cache when its turn comes. What it finds belongs into
kernels/triton/int8_tables.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.bench.kernels_command import run_kernels
from threefold.bench.kernels_products import DTYPE, mean_us
from threefold.kernels.int8 import Int8Table, int8_lookup, int8_product, quantise_rows
from threefold.kernels.triton.ahead import CompiledAhead
from threefold.kernels.triton.fp8 import few_tokens_fp8_body
from threefold.kernels.triton.fp8_tables import FewSizes, TileSizes
from threefold.kernels.triton.int8 import tile_int8_body
from threefold.runner.device import CudaDevice

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512)
FEW_CUTS = tuple(FewSizes(8, *cut) for cut in (
    (16, 128, 4, 4), (16, 256, 2, 4), (32, 64, 2, 8), (32, 128, 2, 4), (32, 128, 2, 6), (32, 128, 4, 4),
    (32, 256, 2, 3), (64, 64, 2, 6), (64, 128, 2, 4),
))  # fmt: skip
CUTS = {  # most tokens -> cuts
    16: ((16, 64, 128, 4, 6), (16, 64, 256, 4, 4), (16, 128, 64, 4, 8), (16, 128, 128, 4, 5), (16, 128, 128, 8, 6)),
    32: ((32, 64, 128, 4, 6), (32, 64, 256, 4, 4), (32, 128, 64, 4, 6), (32, 128, 128, 4, 4), (32, 128, 128, 8, 5)),
    64: ((64, 64, 128, 4, 5), (64, 128, 64, 4, 6), (64, 128, 128, 4, 4), (64, 128, 128, 8, 4), (64, 256, 64, 8, 4)),
    1 << 62: (
        (64, 128, 64, 4, 6), (128, 128, 64, 4, 4), (128, 128, 64, 8, 4), (128, 128, 128, 8, 3), (128, 256, 64, 8, 3),
        (256, 64, 64, 4, 3), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4),
    ),
}  # fmt: skip
NUM_TABLES = 2
SHOWN = 4
_THREADS = 16

Body = Callable[[torch.Tensor], Any]


def cuts_for(num_tokens: int) -> Iterator[tuple[str, Callable[[Int8Table], Body]]]:
    """Every body and cut that may serve so many tokens, as makers."""

    def few(table: Int8Table, *, sizes: FewSizes) -> Body:
        multiply = few_tokens_fp8_body(*table, None, None, is_gated=False)
        return lambda x: multiply(x, sizes)

    def many(table: Int8Table, *, sizes: TileSizes) -> Body:
        multiply = tile_int8_body(table)
        return lambda x: multiply(x, sizes)

    cuts = next(cuts for most, cuts in CUTS.items() if num_tokens <= most)
    for cut in cuts:
        yield f"tile {cut}", partial(many, sizes=TileSizes(*cut))
    for sizes in FEW_CUTS if num_tokens <= FEW_CUTS[0].block_tokens else ():
        yield f"few {tuple(sizes)}", partial(few, sizes=sizes)


def compile_all(table: Int8Table, tokens: Sequence[int]) -> None:
    """All bodies at once, by threads."""
    width = table.values.shape[1]
    with CompiledAhead(_THREADS) as ahead, ahead.rehearsal():
        for num_tokens in tokens:
            for _, make in cuts_for(num_tokens):
                make(table)(torch.empty((num_tokens, width), dtype=DTYPE, device=table.values.device))


def measure_product(
    tables: Sequence[Int8Table], plain: Sequence[torch.Tensor], num_tokens: int, device: CudaDevice
) -> dict[str, Any]:
    """Times in microseconds: bf16, what an engine runs, and every cut, the quickest first."""
    x = torch.randn((num_tokens, plain[0].shape[1]), dtype=DTYPE, device=device.torch_device)
    cuts = [
        {"us": mean_us([make(table) for table in tables], x, device), "body": label}
        for label, make in cuts_for(num_tokens)
    ]
    return {
        "tokens": num_tokens,
        "bf16_us": mean_us([partial(F.linear, weight=weight) for weight in plain], x, device),
        "table_us": mean_us([int8_product(table, DTYPE) for table in tables], x, device),
        "cuts": sorted(cuts, key=lambda cut: float(str(cut["us"]))),
    }


def measure_lookup(
    tables: Sequence[Int8Table], plain: Sequence[torch.Tensor], num_tokens: int, device: CudaDevice
) -> dict[str, Any]:
    """Times in microseconds of looking rows up, plain and widened."""
    ids = torch.randint(len(plain[0]), (num_tokens,), device=device.torch_device)
    return {
        "tokens": num_tokens,
        "bf16_us": mean_us([partial(F.embedding, weight=weight) for weight in plain], ids, device),
        "int8_us": mean_us([int8_lookup(table, DTYPE) for table in tables], ids, device),
    }


def measure_all(asked: argparse.Namespace, device: CudaDevice) -> dict[str, Any]:
    """Every reading, shown as it comes."""
    size = asked.rows, asked.width
    plain = [torch.randn(size, dtype=DTYPE, device=device.torch_device) for _ in range(NUM_TABLES)]
    tables = [quantise_rows(weight) for weight in plain]
    compile_all(tables[0], asked.tokens)
    products, lookups = [], []
    for num_tokens in asked.tokens:
        one = measure_product(tables, plain, num_tokens, device)
        products.append(one)
        best = "  ".join(f"{cut['us']:.1f} {cut['body']}" for cut in one["cuts"][:SHOWN])
        print(f"{num_tokens:5} tokens  bf16 {one['bf16_us']:6.1f} us, table {one['table_us']:.1f}   {best}", flush=True)
    for num_tokens in (1, 256, 8192):
        one = measure_lookup(tables, plain, num_tokens, device)
        lookups.append(one)
        print(f"{num_tokens:5} rows looked up  bf16 {one['bf16_us']:6.1f} us, int8 {one['int8_us']:.1f}", flush=True)
    return {"int8_products": products, "int8_lookups": lookups}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Measure int8 tables on a card.")
    parser.add_argument("--rows", type=int, default=151936, help="of a table (151936)")
    parser.add_argument("--width", type=int, default=4096, help="of a row (4096)")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="numbers of tokens")
    run_kernels(parser, measure_all)


if __name__ == "__main__":
    main()
