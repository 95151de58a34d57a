"""The bodies around a draft model's passes compile for a Hopper card where there is none.

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
from threefold.kernels.triton import drafting

LONGS = ("rows", "token_positions", "ends", "rounds", "asked", "drawn", "target_tokens", "tokens", "positions", "slots")
INTS = ("tables", "starts", "contexts", "own_tables", "keys", "out")

def check(body, constants, warps=4, **types):
    types = dict.fromkeys((f"{name}_ptr" for name in LONGS), "*i64") | types
    types = dict.fromkeys((f"{name}_ptr" for name in INTS), "*i32") | types
    types |= dict.fromkeys(("logits_ptr", "peaks_ptr", "sums_ptr"), "*fp32")
    signature = {name: "constexpr" if name.isupper() else types.get(name, "i32") for name in body.arg_names}
    source = ASTSource(body, signature, constants)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert len(binary.asm["cubin"]) > 0
    print(body.__name__)

sizes = {"BLOCK_SIZE": 16, "PADDED_ROWS": 32, "PADDED_WIDTH": 1024}
check(drafting._next_inputs, sizes, ids_ptr="*i64")
for max_draft in (1, 5):
    drafts = {"MAX_DRAFT": max_draft, "PADDED_DRAFT": triton.next_power_of_2(max_draft)}
    check(drafting._judged_inputs, sizes | drafts, ids_ptr="*i64")
check(drafting._weigh_pieces, {"VOCAB": 151936, "PIECE": drafting.PIECE}, ids_ptr="*i32")
check(drafting._note_choice, {"VOCAB": 151936, "PIECES": 38, "PADDED_PIECES": 64}, 1, ids_ptr="*i32")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler comes for Linux")
def test_bodies_compile_for_a_card(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == 5
