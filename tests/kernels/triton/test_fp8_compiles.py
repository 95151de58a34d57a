"""FP8 bodies compile for a Hopper card where there is none, within its shared memory and registers.

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
from threefold.kernels.triton import fp8, fp8_many, fp8_rows, fp8_tile
from threefold.kernels.triton.fp8_tables import fp8_few_sizes, fp8_tile_sizes

MOST_SHARED_BYTES = 227 << 10

def check(body, warps, stages, constants, **types):
    signature = {argument: types.get(argument, "constexpr") for argument in body.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(body.arg_names) if signature[a].startswith("*")}
    source = ASTSource(body, signature, constants, aligned)
    options = {"num_warps": warps, "num_stages": stages}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert len(binary.asm["cubin"]) > 0
    assert binary.metadata.shared <= MOST_SHARED_BYTES, (constants, binary.metadata.shared)
    print(body.__name__)
    return binary

pointers = {"scales_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "weight_ptr": "*fp8e4nv"}
pointers |= {"num_tokens": "i32"}
for is_gated in (False, True):
    beside = {"NUM_OUTPUTS": 12288 if is_gated else 4096, "NUM_INPUTS": 4096, "HAS_BIAS": True, "IS_GATED": is_gated}
    for num_tokens, scale_inputs in ((1, 0), (16, 128)):
        sizes = fp8_few_sizes(num_tokens, 24576 if is_gated else 4096, scale_inputs or None)
        cut = {"BLOCK_M": sizes.block_tokens, "BLOCK_N": sizes.block_rows, "BLOCK_K": sizes.block_inputs}
        cut |= {"PARTS": sizes.num_parts, "SCALE_ROWS": 128, "SCALE_INPUTS": scale_inputs}
        binary = check(fp8.few_rows_fp8, sizes.num_parts, sizes.num_stages, cut | beside, x_ptr="*bf16", **pointers)
        loop = binary.asm["ttgir"].split("scf.for")[1].split("scf.yield")[0]
        assert "ttg.local_alloc" not in loop, sizes  # nothing is written to shared memory but by copies
    for num_tokens in (16, 32, 64):
        sizes = fp8_tile_sizes(num_tokens, 24576 if is_gated else 4096)
        cut = {"BLOCK_M": sizes.block_tokens, "BLOCK_N": sizes.block_rows, "BLOCK_K": sizes.block_inputs}
        out = {"out_ptr": "*bf16" if sizes.num_splits == 1 else "*fp32"}
        both = pointers | {"x_ptr": "*fp8e4nv", "x_scales_ptr": "*fp32"} | out
        cut |= {"SPLITS": sizes.num_splits}
        binary = check(fp8_tile.tile_fp8, sizes.num_warps, sizes.num_stages, cut | beside, **both)
        assert "wgmma.mma_async" in binary.asm["ptx"]

constants = {"NUM_OUTPUTS": 12288, "NUM_INPUTS": 4096, "HAS_BIAS": True, "BLOCK_OUTPUTS": 128, "BLOCK_INPUTS": 128}
constants |= {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP_M": 8}
both = pointers | {"x_ptr": "*fp8e4nv", "x_scales_ptr": "*fp32"}
check(fp8_many._many_tokens_fp8, 4, 4, constants, **both)
rounded = {"fixed_ptr": "*fp32", "scales_ptr": "*fp32", "values_ptr": "*fp8e4nv", "num_rows": "i32", "bound": "fp32"}
tile = {"WIDTH": 4096, "HAS_FIXED": False, "ROWS": 1, "PADDED_WIDTH": 4096}
check(fp8_rows._round_rows, 8, 1, tile | {"IS_GATED": True}, x_ptr="*bf16", **rounded)
more = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr"), "*bf16") | {"eps": "fp32"}
check(fp8_rows._norm_rounded, 8, 1, tile | {"HAS_RESIDUAL": True}, **more, **rounded)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler comes for Linux")
def test_bodies_compile_for_a_card(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 13
