"""Paged attention: the compiled body against gather and torch's own attention, over all shapes a step can have."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.attention import PagedAttention, attend_reference
from threefold.kernels.kv import KVCache, allocate
from threefold.kernels.rotary import Heads

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
MIXED = [(1, 1), (1, 300), (6, 50), (40, 40), (3, 17), (1, 129)]  # (new tokens, context) of each row


class Step:
    """Rows over blocks in shuffled order; slots beyond each context hold garbage."""

    def __init__(self, rows: list[tuple[int, int]], heads: Heads, block_size: int, dtype: torch.dtype) -> None:
        torch.manual_seed(len(rows))
        widths = [-(-context // block_size) for _, context in rows]
        ids = torch.randperm(sum(widths) + 3, dtype=torch.int32)
        self.tables = torch.full((len(rows), max(widths) + 1), int(ids[-1]), dtype=torch.int32)
        self.kv = allocate(len(ids), block_size, heads.num_kv_heads, heads.head_dim, dtype, CPU)
        fill_with_noise(self.kv, 50.0)
        start = 0
        for row, ((_, context), width) in enumerate(zip(rows, widths, strict=True)):
            self.tables[row, :width] = ids[start : start + width]
            start += width
            positions = torch.arange(context)
            slots = self.tables[row, positions // block_size].long() * block_size + positions % block_size
            shape = (context, heads.num_kv_heads, heads.head_dim)
            self.kv.write(slots, torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))
        new = torch.tensor([0] + [num_new for num_new, _ in rows])
        self.row_starts = new.cumsum(0).to(torch.int32)
        self.context_lens = torch.tensor([context for _, context in rows], dtype=torch.int32)
        self.qkv = torch.randn(int(new.sum()), heads.width).to(dtype)


def fill_with_noise(kv: KVCache, scale: float) -> None:
    kv.keys.copy_(scale * torch.randn(kv.keys.shape))
    kv.values.copy_(scale * torch.randn(kv.values.shape))


def both(step: Step, heads: Heads, dtype: torch.dtype, window: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    scale = heads.head_dim**-0.5
    attention = PagedAttention(heads, scale, window, dtype, CPU)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables)
    queries = step.qkv[:, : heads.num_heads * heads.head_dim].view(len(step.qkv), -1, heads.head_dim)
    return attention(step.qkv, step.kv, plan), attend_reference(queries, step.kv, plan, scale, window).flatten(1)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    "heads", [Heads(9, 3, 64), Heads(4, 4, 32), Heads(8, 2, 128), Heads(8, 1, 64), Heads(10, 1, 32), Heads(4, 2, 96)]
)
def test_mixed_rows(dtype: torch.dtype, heads: Heads) -> None:
    got, expected = both(Step(MIXED, heads, 16, dtype), heads, dtype)

    torch.testing.assert_close(got, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
def test_block_sizes(block_size: int) -> None:
    heads = Heads(6, 2, 32)
    got, expected = both(Step(MIXED, heads, block_size, torch.float32), heads, torch.float32)

    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [1, 16, 40, 200])
def test_sliding_window(window: int) -> None:
    heads = Heads(6, 2, 32)
    got, expected = both(Step(MIXED, heads, 16, torch.float32), heads, torch.float32, window)

    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [[(1, 2000)], [(5, 1100)], [(200, 700)], [(1, 1)]])
def test_few_rows_of_long_context_in_parts(rows: list[tuple[int, int]]) -> None:
    heads = Heads(2, 1, 64)
    step = Step(rows, heads, 16, torch.float32)

    for _ in range(2):  # the counters of parts must be zero again after a call
        got, expected = both(step, heads, torch.float32)
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_row_is_bitwise_the_same_beside_others_and_alone(dtype: torch.dtype) -> None:
    heads = Heads(6, 2, 32)
    step = Step(MIXED, heads, 16, dtype)
    together = both(step, heads, dtype)[0]
    attention = PagedAttention(heads, heads.head_dim**-0.5, None, dtype, CPU)

    for row in range(len(MIXED)):
        first, end = step.row_starts[row : row + 2].tolist()
        starts = torch.tensor([0, end - first], dtype=torch.int32)
        plan = attention.plan(starts, step.context_lens[row : row + 1], step.tables[row : row + 1])
        alone = attention(step.qkv[first:end].contiguous(), step.kv, plan)
        assert torch.equal(together[first:end], alone)


def test_one_token_with_a_draft_behind_it_is_the_token_alone() -> None:
    heads = Heads(6, 2, 32)
    step = Step([(3, 60)], heads, 16, torch.bfloat16)
    attention = PagedAttention(heads, heads.head_dim**-0.5, None, torch.bfloat16, CPU)
    whole = attention(step.qkv, step.kv, attention.plan(step.row_starts, step.context_lens, step.tables))

    one = attention.plan(torch.tensor([0, 1]), torch.tensor([58]), step.tables)

    assert torch.equal(whole[:1], attention(step.qkv[:1].contiguous(), step.kv, one))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_what_a_block_held_before_does_not_leak(dtype: torch.dtype, block_size: int) -> None:
    """Blocks of a faulty request, full of NaN, are used again; table entries behind a row's blocks are no blocks."""
    heads = Heads(6, 2, 32)
    clean = Step(MIXED, heads, block_size, dtype)
    before = both(clean, heads, dtype)[0]
    num_slots = clean.kv.keys.shape[0] * block_size
    used = torch.zeros(num_slots, dtype=torch.bool)
    for row, context in enumerate(clean.context_lens.tolist()):
        positions = torch.arange(context)
        used[clean.tables[row, positions // block_size].long() * block_size + positions % block_size] = True
        clean.tables[row, -(-context // block_size) :] = 2**30
    unused = (~used).nonzero()[:, 0]
    nan = torch.full((len(unused), heads.num_kv_heads, heads.head_dim), float("nan"), dtype=dtype)

    clean.kv.write(unused, nan, nan)

    assert torch.equal(before, both(clean, heads, dtype)[0])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rows", [[(1, 1500)], [(5, 700), (1, 3)]])
def test_window_over_a_long_context_in_parts(dtype: torch.dtype, rows: list[tuple[int, int]]) -> None:
    heads = Heads(6, 2, 32)
    got, expected = both(Step(rows, heads, 16, dtype), heads, dtype, window=300)

    torch.testing.assert_close(got, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


def test_a_cache_of_another_dtype_is_served_by_the_reference() -> None:
    heads = Heads(6, 2, 32)
    step = Step(MIXED, heads, 16, torch.bfloat16)
    wide = step.qkv.float()
    attention = PagedAttention(heads, heads.head_dim**-0.5, None, torch.float32, CPU)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables)

    got = attention(wide, step.kv, plan)

    torch.testing.assert_close(got, both(step, heads, torch.bfloat16)[1].float(), rtol=2e-2, atol=2e-2)


def test_a_step_without_rows() -> None:
    attention = PagedAttention(Heads(6, 2, 32), 1.0, None, torch.float32, CPU)
    nothing = torch.zeros(0, dtype=torch.int32)
    plan = attention.plan(torch.zeros(1, dtype=torch.int32), nothing, nothing.view(0, 1))

    got = attention(torch.zeros(0, 10 * 32), allocate(1, 16, 2, 32, torch.float32, CPU), plan)

    assert (0, 6 * 32) == tuple(got.shape)
