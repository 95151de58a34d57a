"""Paged attention on a card at real sizes against float32 arithmetic over the same numbers; a graph gives the same."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.attention import PagedAttention, StepBounds, attend_reference
from threefold.kernels.kv import FP8, allocate
from threefold.kernels.rotary import Heads

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
MODELS = [Heads(32, 8, 128), Heads(16, 8, 128), Heads(9, 3, 64), Heads(4, 4, 80)]
MAX_ERROR = 6e-3  # norm of the difference over norm of the result: bf16 weights and a bf16 result
STEPS = {  # (new tokens, context) of each row
    "one row": [(1, 3000)],
    "one row with drafts": [(6, 3000)],
    "many rows": [(1, 37 * i % 1500 + 1) for i in range(64)],
    "ragged drafts": [(i % 17 + 1, 61 * i % 900 + 17) for i in range(48)],
    "prompt": [(1500, 1500)],
    "chunk": [(512, 2000)],
    "mixed": [(1, 41 * i % 800 + 1) for i in range(40)] + [(600, 900), (5, 300), (13, 100), (18, 18)],
    "long contexts beside a prompt": [(1, 6000), (300, 300), (3, 2500), (1, 40)],
}


class Step:
    """Rows over shuffled blocks, padding behind them."""

    def __init__(self, rows, heads, kv_dtype=torch.bfloat16, padding=(0, 0)) -> None:
        torch.manual_seed(0)
        widths = [-(-context // 16) for _, context in rows]
        ids = torch.randperm(sum(widths), dtype=torch.int32)
        tables = torch.zeros((len(rows) + padding[1], max(widths)), dtype=torch.int32)
        for table, width, own in zip(tables, widths, ids.split(widths), strict=False):
            table[:width] = own
        self.tables = tables.to(CARD)
        self.kv = allocate(len(ids), 16, heads.num_kv_heads, heads.head_dim, kv_dtype, CARD)
        for part, scale in ((self.kv.keys, self.kv.key_scale), (self.kv.values, self.kv.value_scale)):
            part.copy_(torch.randn(part.shape, device=CARD).to(kv_dtype))
            if kv_dtype == FP8:
                scale.fill_(1.25)
        new = torch.tensor([0] + [num_new for num_new, _ in rows] + [0] * padding[1])
        self.row_starts = new.cumsum(0).to(torch.int32).to(CARD)
        contexts = [context for _, context in rows] + [0] * padding[1]
        self.context_lens = torch.tensor(contexts, dtype=torch.int32, device=CARD)
        self.num_real = int(new.sum())
        self.qkv = torch.randn((self.num_real + padding[0], heads.width), device=CARD).bfloat16()
        self.bounds = StepBounds(len(self.qkv), int(new.max()), max(contexts))

    def expected(self, heads, plan, window=None) -> torch.Tensor:
        queries = self.qkv[: self.num_real, : heads.num_heads * heads.head_dim].float()
        queries = queries.view(self.num_real, -1, heads.head_dim)
        return attend_reference(queries, self.kv, plan, heads.head_dim**-0.5, window).flatten(1)


def paged(heads, window=None) -> PagedAttention:
    return PagedAttention(heads, heads.head_dim**-0.5, window, torch.bfloat16, CARD)


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("heads", MODELS)
@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, FP8])
def test_every_kind_of_step(heads, rows, kv_dtype) -> None:
    step, attention = Step(rows, heads, kv_dtype), paged(heads)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables, step.bounds)

    assert error(attention(step.qkv, step.kv, plan), step.expected(heads, plan)) < MAX_ERROR


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [STEPS["ragged drafts"], STEPS["mixed"]], ids=["ragged drafts", "mixed"])
def test_other_dtypes(dtype, rows) -> None:
    heads = MODELS[0]
    step = Step(rows, heads, dtype)
    step.qkv = step.qkv.to(dtype)
    attention = PagedAttention(heads, heads.head_dim**-0.5, None, dtype, CARD)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables, step.bounds)

    assert error(attention(step.qkv, step.kv, plan), step.expected(heads, plan)) < (
        1e-3 if dtype == torch.float16 else 1e-5
    )


@pytest.mark.parametrize("window", [1, 100, 1024])
@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
def test_sliding_window(window, rows) -> None:
    heads = MODELS[0]
    step, attention = Step(rows, heads), paged(heads, window)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables, step.bounds)

    assert error(attention(step.qkv, step.kv, plan), step.expected(heads, plan, window)) < MAX_ERROR


@pytest.mark.parametrize("heads", MODELS)
@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
def test_a_graph_of_padded_steps_gives_what_eager_gives(heads, rows) -> None:
    """Captured with loose bounds, replayed over other rows in the same tensors."""
    step, attention = Step(rows, heads, padding=(7, 9)), paged(heads)
    bounds = StepBounds(len(step.qkv), step.bounds.max_new, 8192)

    def attend() -> torch.Tensor:
        plan = attention.plan(step.row_starts, step.context_lens, step.tables, bounds)
        return attention(step.qkv, step.kv, plan)

    attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    for shorter in (0, 1):
        shorter_lens = torch.maximum(step.context_lens - shorter, step.row_starts.diff())  # never fewer than are new
        step.context_lens.copy_(shorter_lens)
        graph.replay()
        assert torch.equal(out[: step.num_real], attend()[: step.num_real])
        plan = attention.plan(step.row_starts, step.context_lens, step.tables, bounds)
        assert error(out[: step.num_real], step.expected(heads, plan)) < MAX_ERROR


def test_bounds_may_be_read_off_the_tensors() -> None:
    heads = MODELS[0]
    step, attention = Step(STEPS["mixed"], heads), paged(heads)
    plans = [attention.plan(step.row_starts, step.context_lens, step.tables, bounds) for bounds in (step.bounds, None)]

    assert torch.equal(*(attention(step.qkv, step.kv, plan) for plan in plans))
