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
from threefold.kernels.triton import activation, argmax, attention_decode, attention_mixed, draw
from threefold.kernels.triton import norm, product, rotary, staged

def check(body, warps, constants, **types):
    signature = {name: "constexpr" if name.isupper() else types[name] for name in body.arg_names}
    source = ASTSource(body, signature, constants)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert len(binary.asm["cubin"]) > 0
    print(body.__name__)

pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr"), "*bf16")
for rows, width in ((1, 4096), (4, 576)):
    constants = {"WIDTH": width, "HAS_RESIDUAL": True, "ROWS": rows, "PADDED_WIDTH": triton.next_power_of_2(width)}
    check(norm._rms_norm, 8, constants, **pointers, num_rows="i32", eps="fp32")
constants = {"WIDTH": 12288, "PIECES": 6, "PIECE": 2048}
check(activation._silu_mul, 4, constants, gate_up_ptr="*bf16", out_ptr="*bf16")

operands = dict.fromkeys(("x_ptr", "weight_ptr", "bias_ptr", "out_ptr", "residual_ptr", "norm_ptr"), "*bf16")
operands |= {"squares_ptr": "*fp32", "num_tokens": "i32", "eps": "fp32"}
cut = {"NUM_OUTPUTS": 4096, "NUM_INPUTS": 4096, "HAS_BIAS": False, "BLOCK_M": 8, "BLOCK_N": 16, "BLOCK_K": 128}
for is_gated, pieces, parts in ((False, 4, 0), (True, 1, 256)):
    more = {"IS_GATED": is_gated, "PIECES": pieces, "PARTS": parts, "SQUARES": (2,) * 8 + (8,), "ADDS": not parts}
    check(product._few_tokens, pieces, cut | more, **operands)

heads = {"NUM_HEADS": 32, "NUM_KV_HEADS": 8, "BLOCK_SIZE": 16}
caches = {"key_scale_ptr": "*fp32", "value_scale_ptr": "*fp32", "keys_ptr": "*fp8e4nv", "values_ptr": "*fp8e4nv"}
numbers = dict.fromkeys(("qkv_ptr", "query_weight_ptr", "key_weight_ptr"), "*bf16")
numbers |= {"angles_ptr": "*fp32", "slots_ptr": "*i64", "eps": "fp32"}
constants = heads | {"HALF": 64, "HAS_NORMS": True, "IS_FP8": True, "TILE_HEADS": 16, "PADDED_HALF": 64}
check(rotary._rotate_and_store, 4, constants, **numbers, **caches)
step = dict.fromkeys(("row_starts_ptr", "context_lens_ptr", "tables_ptr", "work_ptr", "counters_ptr"), "*i32")
step |= dict.fromkeys(("shares_ptr", "peaks_ptr", "totals_ptr"), "*fp32") | {"qkv_ptr": "*bf16", "out_ptr": "*bf16"}
step |= dict.fromkeys(("table_width", "max_new", "num_splits", "max_tiles", "share_width", "num_rows"), "i32")
step |= dict.fromkeys(("max_few", "max_shares", "wanted_shares", "num_counters"), "i32") | {"score_scale": "fp32"}
constants = heads | {"HEAD_DIM": 128, "PADDED_DIM": 128, "WINDOW": 0}
few = {"BLOCK_M": 16, "BLOCK_N": 64, "STAGES": 3, "IS_SPLIT": True, "IS_EARLY": True}
check(attention_decode.attend_decode, 4, constants | few, **step, **caches)
tiles = {"TILE_M": 64, "TILE_N": 64, "TILE_STAGES": 2}
for few_m in (0, 16):
    few = {"FEW_M": few_m, "FEW_N": 64, "FEW_STAGES": 3, "MERGED": 2}
    check(attention_mixed.attend_mixed, 4, constants | tiles | few, **step, **caches)
check(attention_mixed.list_attention_work, 4, {"TILE": 16, "BLOCK_N": 64, "WINDOW": 0}, **step)
constants = {"NUM_HEADS": 32, "HEAD_DIM": 128, "PADDED_DIM": 128, "BLOCK_N": 64, "MAX_SPLITS": 64, "WINDOW": 0}
constants |= {"IS_EARLY": True}
check(attention_decode.merge_splits, 2, constants, **step)

winners = {"keys_ptr": "*i32", "ids_ptr": "*i32", "row_stride": "i32"}
check(argmax._piece_winners, 4, {"VOCAB": 151936, "PIECE": argmax.PIECE}, logits_ptr="*bf16", **winners)
constants = {"VOCAB": 151936, "PIECES": 38, "PADDED_PIECES": 64}
winners |= {"logits_ptr": "*fp32", "tokens_ptr": "*i64", "values_ptr": "*fp32"}
check(argmax._row_winner, 1, constants, **winners)
winners |= {"places_ptr": "*i64", "noted_ptr": "*i64", "packed_ptr": "*i32", "num_rows": "i32"}
check(argmax._note_row_winner, 1, constants, **winners)

integers = dict.fromkeys(("staged_ptr", "rows_ptr", "tables_ptr", "own_ptr"), "*i32")
integers |= dict.fromkeys(("num_staged", "num_ids", "num_rows", "width"), "i32")
constants = {"PIECE": staged.PIECE, "PADDED_WIDTH": 1024}
check(staged._unpack_step, 4, constants, **integers, tokens_ptr="*i64", longs_ptr="*i64")

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
    assert len(done.stdout.split()) == 17
