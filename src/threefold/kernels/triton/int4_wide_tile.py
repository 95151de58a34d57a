"""What the warps of kernels/triton/int4_wide.py do with one tile: where it lies, adding inputs, and its results.

A tile has two or four times 64 of the weight's rows. What programs find that have splits of its inputs is added later
(kernels/triton/int4_results.py).
"""
# Triton brings no types, so its decorator hides those of the functions below.
# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803, PLR0917 (constants of compiled bodies come last, in capitals)

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)


def _text(place: int, kind: str, offset_bits: str) -> str:
    """Two units in one register to a pair of weights: the values at one place, less their zero, times their scale."""
    value = f"shr.u32 t, $1, {4 * place}; lop3.b32 t, t, 0x000F000F, {offset_bits}, 0xEA;"  # (t & mask) | bits
    return f"{{ .reg .b32 t; {value} sub.rn.{kind} t, t, $3; mul.rn.{kind} $0, t, $2; }}"


_TEXT_BF16 = gl.constexpr(tuple(_text(place, "bf16x2", "0x43004300") for place in range(4)))
_TEXT_FP16 = gl.constexpr(tuple(_text(place, "f16x2", "0x64006400") for place in range(4)))


@gluon.jit
def place_of(item, work, NUM_CHUNKS: gl.constexpr, BLOCK_M: gl.constexpr):
    """Of an item: tile of rows, first token, first chunk and number of them, split. Tokens first, then splits."""
    num_tokens, num_whole, num_splits, _ = work
    token_tiles = gl.cdiv(num_tokens, BLOCK_M)
    share = gl.cdiv(NUM_CHUNKS, num_splits)
    tile = item // token_tiles
    is_split = tile >= num_whole
    split = gl.where(is_split, (tile - num_whole) % num_splits, 0)
    tile = gl.where(is_split, num_whole + (tile - num_whole) // num_splits, tile)
    first_chunk = split * share
    num_chunks = gl.where(is_split, gl.minimum(share, NUM_CHUNKS - first_chunk), NUM_CHUNKS)
    return tile, item % token_tiles * BLOCK_M, first_chunk, num_chunks, split


@gluon.jit
def rows_of(tile, part, NUM_OUTPUTS: gl.constexpr, IS_GATED: gl.constexpr, PARTS: gl.constexpr):
    """The first of the 64 rows that are one of a tile's PARTS; gated, those are four and every second is the gate's."""
    return tile * 128 + part // 2 * 64 + part % 2 * NUM_OUTPUTS if IS_GATED else (tile * PARTS + part) * 64


@gluon.jit
def loaded(scale_zeros_ptr, group, first_row, NUM_OUTPUTS: gl.constexpr, IS_GATED: gl.constexpr, left: gl.constexpr):
    """Scales and zeros of 64 rows."""
    num_rows: gl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    rows = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, left))
    return gl.load(scale_zeros_ptr + group * num_rows + rows, mask=rows < num_rows, other=0)


@gluon.jit
def _scale_and_zero(both, dtype: gl.constexpr):
    """[rows, 1] each; the zero has the offset that the values have, too."""
    return both.to(gl.int16).to(dtype, bitcast=True)[:, None], (both >> 16).to(gl.int16).to(dtype, bitcast=True)[
        :, None
    ]


@gluon.jit
def _halves(tile, piece: gl.constexpr, left: gl.constexpr):
    """Units of 64 rows as the tensor cores will want their weights: the first half of them and the second."""
    return tile.slice(0, piece, dim=1).load(left), tile.slice(piece, piece, dim=1).load(left)


@gluon.jit
def _weights(units, scale, zero, PLACE: gl.constexpr, dtype: gl.constexpr):
    """The weights at one place of each unit."""
    text: gl.constexpr = _TEXT_BF16[PLACE] if dtype == gl.bfloat16 else _TEXT_FP16[PLACE]
    bits = gl.inline_asm_elementwise(text, "=r,r,r,r", [units, scale, zero], dtype=gl.int16, is_pure=True, pack=2)
    return bits.to(dtype, bitcast=True)


@gluon.jit
def add_chunk(acc_a, acc_b, next_a, next_b, first_a, first_b, number, count, buffers, barriers, scale_zeros_ptr,
              HALF: gl.constexpr, NUM_OUTPUTS: gl.constexpr, NUM_CHUNKS: gl.constexpr, UNITS: gl.constexpr,
              GROUP: gl.constexpr, IS_GATED: gl.constexpr, PARTS: gl.constexpr, X_STAGES: gl.constexpr,
              UNITS_STAGES: gl.constexpr, left: gl.constexpr, dtype: gl.constexpr):  # fmt: skip
    """Sums with one chunk of inputs added, and scales and zeros of the group after it.

    With two PARTS a tile both sums are of the same rows, each of half the inputs.
    """
    x_tiles, units_tiles = buffers
    x_full, x_empty, units_full, units_empty = barriers
    chunk: gl.constexpr = 4 * UNITS
    is_odd_group: gl.constexpr = chunk % GROUP != 0 and GROUP % chunk != 0
    step: gl.constexpr = 1 if is_odd_group else (GROUP // UNITS if GROUP < chunk else 4)  # quarters of a group
    last_group: gl.constexpr = (NUM_CHUNKS * chunk - 1) // GROUP
    piece: gl.constexpr = UNITS // 2
    each: gl.constexpr = PARTS // 2
    place = count % UNITS_STAGES
    mbarrier.wait(units_full.index(place), count // UNITS_STAGES & 1)
    units_a = _halves(units_tiles.index(place * PARTS + HALF * each), piece, left)
    units_b = _halves(units_tiles.index(place * PARTS + HALF * each + each - 1), piece, left)
    fence_async_shared()
    mbarrier.arrive(units_empty.index(place), count=1)
    for quarter in gl.static_range(4):
        if quarter % step == 0:
            scale_a, zero_a = _scale_and_zero(next_a, dtype)
            scale_b, zero_b = _scale_and_zero(next_b, dtype)
            group = gl.minimum((number * chunk + (quarter + step) * UNITS) // GROUP, last_group)
            next_a = loaded(scale_zeros_ptr, group, first_a, NUM_OUTPUTS, IS_GATED, left)
            next_b = loaded(scale_zeros_ptr, group, first_b, NUM_OUTPUTS, IS_GATED, left)
        turn = count * 4 + quarter
        place = turn % X_STAGES
        for which in gl.static_range(each):
            weights_a = _weights(units_a[which], scale_a, zero_a, quarter, dtype)
            if which == 0:
                mbarrier.wait(x_full.index(place), turn // X_STAGES & 1)
            x = x_tiles.index(place).slice(which * piece, piece, dim=1).permute((1, 0))
            acc_a = warpgroup_mma(weights_a, x, acc_a, is_async=True)
            if quarter > 0 or which > 0:
                acc_b = warpgroup_mma_wait(1, deps=(acc_b,))
                if which == 0:
                    mbarrier.arrive(x_empty.index((turn - 1) % X_STAGES), count=1)
            if PARTS == 2:
                x = x_tiles.index(place).slice(piece, piece, dim=1).permute((1, 0))
                weights_b = _weights(units_a[1], scale_a, zero_a, quarter, dtype)
            else:
                weights_b = _weights(units_b[which], scale_b, zero_b, quarter, dtype)
            acc_b = warpgroup_mma(weights_b, x, acc_b, is_async=True)
            acc_a = warpgroup_mma_wait(1, deps=(acc_a,))
    acc_b = warpgroup_mma_wait(0, deps=(acc_b,))
    mbarrier.arrive(x_empty.index((count * 4 + 3) % X_STAGES), count=1)
    return acc_a, acc_b, next_a, next_b


@gluon.jit
def store_sums(acc_a, acc_b, first_a, first_b, first_token, split, work, parts_ptr, NUM_OUTPUTS: gl.constexpr,
               IS_GATED: gl.constexpr, PARTS: gl.constexpr, BLOCK_M: gl.constexpr, sums: gl.constexpr):  # fmt: skip
    """What a split found, to [splits, num_tokens, rows that are split]; gated, all gates come first."""
    num_tokens, num_whole, _, _ = work
    first_output = num_whole * (128 if IS_GATED else PARTS * 64)
    num_split = NUM_OUTPUTS - first_output
    num_rows = num_split * 2 if IS_GATED else num_split
    tokens = first_token + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, sums))
    to_tokens = parts_ptr + (split * num_tokens + tokens).to(gl.int64)[None, :] * num_rows
    rows = first_a - first_output + gl.arange(0, 64, layout=gl.SliceLayout(1, sums))
    mask = (rows < num_split)[:, None] & (tokens < num_tokens)[None, :]
    gl.store(to_tokens + rows[:, None], acc_a, mask=mask)
    if IS_GATED:
        gl.store(to_tokens + (rows + num_split)[:, None], acc_b, mask=mask)
    elif PARTS == 4:
        rows += first_b - first_a
        gl.store(to_tokens + rows[:, None], acc_b, mask=(rows < num_split)[:, None] & (tokens < num_tokens)[None, :])


@gluon.jit
def store_results(acc_a, acc_b, first_a, first_b, first_token, bias_ptr, out_ptr, num_tokens,
                  NUM_OUTPUTS: gl.constexpr, HAS_BIAS: gl.constexpr, IS_GATED: gl.constexpr, PARTS: gl.constexpr,
                  BLOCK_M: gl.constexpr, sums: gl.constexpr, dtype: gl.constexpr):  # fmt: skip
    """Sums of 64 rows to results, and where a tile has four PARTS those of 64 others."""
    num_rows: gl.constexpr = NUM_OUTPUTS * 2 if IS_GATED else NUM_OUTPUTS
    if HAS_BIAS:
        acc_a += _bias(bias_ptr, first_a, num_rows, sums)
        acc_b += _bias(bias_ptr, first_b, num_rows, sums)
    if IS_GATED:
        gate = acc_a.to(dtype).to(gl.float32)  # rounded in between, as the two ops by themselves would
        gated = gate / (1.0 + gl.exp(-gate)) * acc_b.to(dtype).to(gl.float32)
        _store(gated.to(dtype), out_ptr, first_a, first_token, num_tokens, NUM_OUTPUTS, BLOCK_M)
    else:
        _store(acc_a.to(dtype), out_ptr, first_a, first_token, num_tokens, NUM_OUTPUTS, BLOCK_M)
        if PARTS == 4:
            _store(acc_b.to(dtype), out_ptr, first_b, first_token, num_tokens, NUM_OUTPUTS, BLOCK_M)


@gluon.jit
def _bias(bias_ptr, first_row, num_rows: gl.constexpr, sums: gl.constexpr):
    rows = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, sums))
    return gl.load(bias_ptr + rows, mask=rows < num_rows, other=0.0).to(gl.float32)[:, None]


@gluon.jit
def _store(results, out_ptr, first_row, first_token, num_tokens, NUM_OUTPUTS: gl.constexpr, BLOCK_M: gl.constexpr):
    whole: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])  # 16 bytes of a token's results a thread
    rows = first_row + gl.arange(0, 64, layout=gl.SliceLayout(1, whole))
    tokens = first_token + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, whole))
    places = out_ptr + tokens.to(gl.int64)[None, :] * NUM_OUTPUTS + rows[:, None]
    mask = (rows < NUM_OUTPUTS)[:, None] & (tokens < num_tokens)[None, :]
    gl.store(places, gl.convert_layout(results, whole), mask=mask)
