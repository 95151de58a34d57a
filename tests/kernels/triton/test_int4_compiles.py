"""Bodies for packed 4-bit weights compile for a Hopper card where there is none, within its shared memory, and keep
weights in registers on their way to the tensor cores.

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
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout
from threefold.kernels.triton import int4, int4_dequantize, int4_few, int4_results, int4_tables, int4_wide
from threefold.kernels.triton.int4_wide_tables import WideSizes
from threefold.kernels.triton.int4_tables import int4_sizes

MOST_SHARED_BYTES = 227 << 10

def check(body, warps, stages, constants, name, source=ASTSource, **types):
    signature = {argument: types.get(argument, "constexpr") for argument in body.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, a in enumerate(body.arg_names) if signature[a].startswith("*")}
    source = source(body, signature, constants, aligned)
    options = {"num_warps": warps, "num_stages": stages}
    options |= {"maxnreg": int4_wide._REGISTERS} if source.language.name == "GLUON" else {}
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert len(binary.asm["cubin"]) > 0
    assert binary.metadata.shared <= MOST_SHARED_BYTES, (name, binary.metadata.shared)
    print(name)
    return binary

pointers = dict(x_ptr="*bf16", units_ptr="*i16", scale_zeros_ptr="*i32", bias_ptr="*bf16", num_tokens="i32")
for is_gated in (False, True):
    for num_tokens in (1, 32, 64, 128, 256):
        sizes = int4_sizes(num_tokens, 24576 if is_gated else 4096, 16, is_gated=is_gated, can_be_wide=False)
        sizes = sizes._replace(num_splits=1 if is_gated else 2)
        constants = {"NUM_OUTPUTS": 12288 if is_gated else 4096, "NUM_INPUTS": 4096, "NUM_CHUNKS": 16, "UNITS": 64}
        constants |= {"GROUP": 128, "HAS_BIAS": True, "IS_GATED": is_gated, "SPLITS": sizes.num_splits}
        constants |= {"BLOCK_M": sizes.block_tokens, "BLOCK_N": sizes.block_rows}
        is_few = num_tokens <= int4_tables.MAX_FEW_TOKENS
        constants |= {"PARTS": sizes.num_parts} if is_few else {"BLOCK_U": sizes.block_units}
        body, warps = (int4_few.few_rows, sizes.num_parts) if is_few else (int4._tiled, sizes.num_warps)
        out = "*fp32" if sizes.num_splits > 1 else "*bf16"
        name = f"{num_tokens}-{is_gated}"
        binary = check(body, warps, sizes.num_stages, constants, name, out_ptr=out, **pointers)
        loop = binary.asm["ttgir"].split("scf.for")[1].split("scf.yield")[0]
        assert "ttg.local_alloc" not in loop, name  # nothing is written to shared memory but by copies
        if not is_few:  # not one wait for every instruction of the tensor cores
            assert binary.asm["ptx"].count("wgmma.mma_async") >= 2 * binary.asm["ptx"].count("wgmma.wait_group") - 4
constants = {"NUM_OUTPUTS": 4096, "HAS_BIAS": True, "IS_GATED": True, "SPLITS": 3, "BLOCK": 256}
check(int4_results._add_splits, 8, 1, constants, "splits", parts_ptr="*fp32", out_ptr="*bf16", bias_ptr="*bf16",
      num_tokens="i32", first_output="i32")
constants = {"NUM_ROWS": 4096, "NUM_INPUTS": 4096, "UNITS": 64, "GROUP": 128, "BLOCK_N": 16}
check(int4_dequantize._dequantize, 4, 1, constants, "pieces", units_ptr="*i16", scale_zeros_ptr="*i32",
      out_ptr="*fp16", first_output="i32", num_outputs="i32")

wide = dict(scale_zeros_ptr="*i32", bias_ptr="*bf16", out_ptr="*bf16", parts_ptr="*fp32")
wide |= dict.fromkeys(("num_tokens", "num_whole", "num_splits", "num_items"), "i32")
wide_cuts = {WideSizes(128, 256, 1): (64, 128), WideSizes(64, 128, 1): (64, 64), WideSizes(32, 256, 1): (32, 96)}
for sizes, (units, group) in wide_cuts.items():
    is_gated = sizes.block_tokens == 128
    layout = NVMMASharedLayout(swizzle_byte_width=2 * units, element_bitwidth=16)
    descriptors = {"x_desc": f"tensordesc<bf16[{sizes.block_tokens}, {units}],{layout!r}>"}
    descriptors |= {"units_desc": f"tensordesc<i16[64, {units}],{layout!r}>"}
    constants = {"NUM_OUTPUTS": 4096, "NUM_CHUNKS": 9, "UNITS": units, "GROUP": group, "HAS_BIAS": True}
    constants |= {"IS_GATED": is_gated, "PARTS": sizes.block_rows // 64, "BLOCK_M": sizes.block_tokens}
    constants |= dict(zip(("X_STAGES", "UNITS_STAGES"), sizes.stages))
    name = f"wide-{sizes.block_tokens}"
    binary = check(int4_wide.wide, 4, 1, constants, name, GluonASTSource, **descriptors, **wide)
    assert binary.metadata.num_warps == 12, name  # two groups that multiply, one that fetches
    products = 2 * 4 * sizes.block_rows // 128 * units // 16  # groups, quarters, of 64 rows, of 16 inputs
    assert binary.asm["ptx"].count("wgmma.mma_async") == products, name
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler comes for Linux")
def test_bodies_compile_for_a_card(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 15
