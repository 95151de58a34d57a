"""Bodies for int8 tables compile for a Hopper card where there is none, within its shared memory.

In a process of its own, because Triton's interpreter cannot be switched off again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from threefold.kernels.triton import fp8, int8, int8_lookup
from threefold.kernels.triton.int8_tables import int8_few_sizes, int8_sizes

MOST_SHARED_BYTES = 227 << 10
SLOW = ("cvt.rn.f32.s8", "cvt.rn.f32.s32", "cvt.rn.f16.s")  # integers to floats, in the card's slowest unit

def check(body, warps, stages, constants, **types):
    signature = {argument: types.get(argument, "constexpr") for argument in body.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(body.arg_names) if signature[a].startswith("*")}
    source = ASTSource(body, signature, constants, aligned)
    options = {"num_warps": warps, "num_stages": stages}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert binary.metadata.shared <= MOST_SHARED_BYTES, (constants, binary.metadata.shared)
    print(body.__name__, constants)
    return binary

pointers = {"scales_ptr": "*fp32", "out_ptr": "*bf16", "x_ptr": "*bf16", "num_tokens": "i32"}
sizes = int8_few_sizes(151936)
cut = {"BLOCK_M": sizes.block_tokens, "BLOCK_N": sizes.block_rows, "BLOCK_K": sizes.block_inputs}
cut |= {"PARTS": sizes.num_parts, "SCALE_ROWS": 1, "SCALE_INPUTS": 0}
cut |= {"NUM_OUTPUTS": 151936, "NUM_INPUTS": 4096, "HAS_BIAS": False, "IS_GATED": False}
few = check(fp8.few_rows_fp8, sizes.num_parts, sizes.num_stages, cut, weight_ptr="*i8", bias_ptr="*fp32", **pointers)
assert not any(slow in few.asm["ptx"] for slow in SLOW)
for num_tokens in (9, 17, 33, 65, 129):
    sizes = int8_sizes(num_tokens)
    cut = {"BLOCK_M": sizes.block_tokens, "BLOCK_N": sizes.block_rows, "BLOCK_K": sizes.block_inputs}
    shape = {"NUM_ROWS": 151936, "WIDTH": 4096}
    binary = check(int8.tile_int8, sizes.num_warps, sizes.num_stages, cut | shape, table_ptr="*i8", **pointers)
    assert "wgmma.mma_async" in binary.asm["ptx"]
    assert not any(slow in binary.asm["ptx"] for slow in SLOW)
    loop = binary.asm["ttgir"].split("scf.for")[1].split("scf.yield")[0]
    assert "ttg.local_alloc" not in loop, sizes  # rows go from copies to registers to tensor cores
row = {"WIDTH": 4096, "BLOCK": 2048}
types = {"ids_ptr": "*i64", "values_ptr": "*i8", "scales_ptr": "*fp32", "out_ptr": "*bf16"}
check(int8_lookup._look_up, 4, 3, row, **types)
print("all compile")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is there on Linux alone")
def test_bodies_compile_for_a_hopper_card(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert "all compile" in done.stdout, done.stdout + done.stderr
