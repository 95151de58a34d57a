"""Bodies compile for a Hopper card where there is none: what the interpreter forgives, the compiler does not.

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
from threefold.kernels.triton import activation, argmax, draw, norm

def check(body, warps, constants, **types):
    signature = {name: types.get(name, "constexpr") for name in body.arg_names}
    source = ASTSource(body, signature, constants)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert len(binary.asm["cubin"]) > 0
    print(body.__name__)

pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr"), "*bf16")
for rows, width in ((1, 4096), (4, 576)):
    constants = {"WIDTH": width, "HAS_RESIDUAL": True, "ROWS": rows, "PADDED_WIDTH": triton.next_power_of_2(width)}
    check(norm._rms_norm, 8, constants, **pointers, num_rows="i32", eps="fp32")
check(activation._silu_mul, 4, {"WIDTH": 12288, "PIECES": 6, "PIECE": 2048}, gate_up_ptr="*bf16", out_ptr="*bf16")

winners = {"keys_ptr": "*i32", "ids_ptr": "*i32", "row_stride": "i32"}
check(argmax._piece_winners, 4, {"VOCAB": 151936, "PIECE": argmax.PIECE}, logits_ptr="*bf16", **winners)
constants = {"VOCAB": 151936, "PIECES": 38, "PADDED_PIECES": 64}
check(argmax._row_winner, 1, constants, logits_ptr="*fp32", tokens_ptr="*i64", values_ptr="*fp32", **winners)

summary = dict.fromkeys(("logits_ptr", "temperature_ptr", "peaks_ptr", "masses_ptr", "group_peaks_ptr"), "*fp32")
constants = {"VOCAB": 151936, "PIECE": draw.PIECE, "GROUP": draw.GROUP}
check(draw._summarise, 4, constants, **summary, row_stride="i32")
more = {"top_k_ptr": "*i32", "top_p_ptr": "*fp32", "min_p_ptr": "*fp32", "uniforms_ptr": "*fp64"}
more |= {"hits_ptr": "*i32", "candidates_ptr": "*fp32", "candidate_ids_ptr": "*i32"}
constants |= {"PIECES": 75, "PADDED_PIECES": 128, "CAPACITY": draw.CAPACITY, "SEARCH": draw.SEARCH}
check(draw._draw, 8, constants, **summary, **more, tokens_ptr="*i64", row_stride="i32")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler comes for Linux")
def test_small_ops_compile_for_a_card(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 7
