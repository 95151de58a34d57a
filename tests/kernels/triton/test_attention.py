"""The Triton attention, interpreted, against the contract in torch, for every shape that a step can have."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.attention import StepBounds, attend_reference
from threefold.kernels.kv import FP8, allocate_by_token
from threefold.kernels.rotary import Heads
from threefold.kernels.triton.attention import CardAttention
from threefold.kernels.triton.attention_mixed import most_tiles
from threefold.kernels.triton.tables import DecodeSizes, PromptSizes

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}
DECODE = DecodeSizes(32, 4, 2, 64)
PROMPT = PromptSizes(32, 32, 4, 2)
DECODES = [(1, 1), (1, 70), (1, 129)]  # (new tokens, context) of each row
DRAFTS = [(6, 50), (1, 33), (7, 7)]
MIXED = [(1, 1), (40, 75), (6, 50), (1, 90), (70, 70)]
POISON = 123.0


class Step:
    """Rows over blocks in shuffled order, padding behind them; memory nobody wrote is not zero."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        heads: Heads,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        torch.manual_seed(len(rows))
        widths = [-(-context // block_size) for _, context in rows]
        ids = torch.randperm(sum(widths) + 3, dtype=torch.int32)
        num_rows = len(rows) + padding[1]
        self.tables = torch.full((num_rows, max(widths) + 1), 1 << 29, dtype=torch.int32)  # no block: never read
        self.kv = allocate_by_token(len(ids), block_size, heads.num_kv_heads, heads.head_dim, kv_dtype or dtype, CPU)
        self.kv.keys.copy_(50 * torch.randn(self.kv.keys.shape))
        self.kv.values.copy_(50 * torch.randn(self.kv.keys.shape))
        if kv_dtype == FP8:
            self.kv.key_scale.fill_(0.02)
            self.kv.value_scale.fill_(0.03)
        start = 0
        for row, ((_, context), width) in enumerate(zip(rows, widths, strict=True)):
            self.tables[row, :width] = ids[start : start + width]
            start += width
            positions = torch.arange(context)
            slots = self.tables[row, positions // block_size].long() * block_size + positions % block_size
            shape = (context, heads.num_kv_heads, heads.head_dim)
            self.kv.write(slots, torch.randn(shape).to(dtype), torch.randn(shape).to(dtype))
        new = torch.tensor([0] + [num_new for num_new, _ in rows] + [0] * padding[1])
        self.row_starts = new.cumsum(0).to(torch.int32)
        self.context_lens = torch.tensor([context for _, context in rows] + [0] * padding[1], dtype=torch.int32)
        self.num_real = int(new.sum())
        self.qkv = torch.randn(self.num_real + padding[0], heads.width).to(dtype)
        self.bounds = StepBounds(len(self.qkv), int(new.max()), int(self.context_lens.max()))


def check(step: Step, heads: Heads, window: int | None = None, bounds: StepBounds | None = None, **sizes) -> None:
    scale = heads.head_dim**-0.5
    attention = CardAttention(heads, scale, window, **{"decode": DECODE, "prompt": PROMPT, **sizes})
    plan = attention.plan(step.row_starts, step.context_lens, step.tables, bounds or step.bounds)
    queries = step.qkv[:, : heads.num_heads * heads.head_dim].view(len(step.qkv), -1, heads.head_dim)
    expected = attend_reference(queries, step.kv, plan, scale, window).flatten(1)

    got = attention(step.qkv, step.kv, plan)

    bound = BOUNDS[step.qkv.dtype]
    torch.testing.assert_close(got[: step.num_real], expected[: step.num_real], rtol=bound, atol=bound)


@pytest.mark.parametrize(
    "heads", [Heads(2, 2, 64), Heads(4, 2, 64), Heads(9, 3, 64), Heads(8, 2, 128), Heads(3, 1, 80)]
)
@pytest.mark.parametrize("rows", [DECODES, DRAFTS, MIXED], ids=["decodes", "drafts", "mixed"])
def test_every_kind_of_step(heads: Heads, rows: list[tuple[int, int]]) -> None:
    check(Step(rows, heads), heads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [DRAFTS, [(1, 20), (40, 45)]], ids=["drafts", "mixed"])
def test_dtypes(dtype: torch.dtype, rows: list[tuple[int, int]]) -> None:
    heads = Heads(3, 1, 64)
    check(Step(rows, heads, dtype=dtype), heads)


@pytest.mark.parametrize("block_size", [8, 32])
def test_block_sizes(block_size: int) -> None:
    heads = Heads(3, 1, 32)
    check(Step(MIXED, heads, block_size), heads)


@pytest.mark.parametrize("window", [1, 20, 64, 500])
@pytest.mark.parametrize("rows", [DRAFTS, MIXED], ids=["drafts", "mixed"])
def test_sliding_window(window: int, rows: list[tuple[int, int]]) -> None:
    heads = Heads(2, 1, 32)
    check(Step(rows, heads), heads, window)


@pytest.mark.parametrize("num_new", [1, 2, 16, 17])
@pytest.mark.parametrize("max_splits", [1, 3, 64])
@pytest.mark.parametrize("window", [None, 100])
def test_contexts_in_splits(num_new: int, max_splits: int, window: int | None) -> None:
    heads = Heads(3, 1, 32)
    check(Step([(num_new, 333), (1, 40)], heads), heads, window, max_splits=max_splits)


@pytest.mark.parametrize(
    "rows", [[(1, 300), (50, 120), (2, 200)], [(20, 20)] * 3 + [(1, 1)] * 70], ids=["long", "many"]
)
@pytest.mark.parametrize("num_programs", [2, 90])
@pytest.mark.parametrize("window", [None, 100])
def test_shares_of_contexts_beside_prompts(rows: list[tuple[int, int]], num_programs: int, window: int | None) -> None:
    heads = Heads(4, 2, 32)
    step = Step(rows, heads, padding=(3, 40))
    bounds = StepBounds(len(step.qkv), len(step.qkv), 4096)
    check(step, heads, window, bounds=bounds, decode=DECODE._replace(num_programs=num_programs))


def test_a_plan_serves_layer_after_layer() -> None:
    """Whoever merges a row's shares leaves their counter as the next layer wants it."""
    heads = Heads(3, 1, 32)
    step = Step([(1, 300), (40, 75), (2, 90)], heads)
    attention = CardAttention(heads, 0.2, None, decode=DECODE, prompt=PROMPT)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables, step.bounds)

    assert torch.equal(*(attention(step.qkv, step.kv, plan) for _ in range(2)))


@pytest.mark.parametrize("least_new", [1, 5, 9, 18])
@pytest.mark.parametrize("tile_tokens", [1, 2, 16, 21])
def test_there_is_room_for_the_tiles_of_any_rows(least_new: int, tile_tokens: int) -> None:
    for num_new in range(least_new, 70):
        for num_rows in (1, 2, 7):
            most = most_tiles(num_new * num_rows + 3, num_rows, least_new, tile_tokens)
            assert num_rows * -(-num_new // tile_tokens) <= most


@pytest.mark.parametrize("rows", [DECODES, DRAFTS, MIXED, [(50, 90)]], ids=["decodes", "drafts", "mixed", "prompt"])
def test_padding_and_loose_bounds(rows: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and bounds of a captured step: more tokens and rows than there are, and nothing of it touched."""
    heads = Heads(3, 1, 32)
    step = Step(rows, heads, padding=(9, 5))
    bounds = StepBounds(len(step.qkv), 2 * step.bounds.max_new, 4096)
    step.qkv[step.num_real :] = float("nan")
    check(step, heads, bounds=bounds)

    attention = CardAttention(heads, 1.0, None, decode=DECODE, prompt=PROMPT)
    plan = attention.plan(step.row_starts, step.context_lens, step.tables, bounds)
    guarded = torch.full((len(step.qkv) + 4, 96), POISON)
    plain = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda self, shape, **kind: plain(self, shape, **kind) if kind else guarded[2 : 2 + shape[0]],
    )
    attention(step.qkv, step.kv, plan)
    assert (guarded[:2] == POISON).all() and (guarded[2 + step.num_real :] == POISON).all()
    assert not (guarded[2 : 2 + step.num_real] == POISON).any()


@pytest.mark.parametrize("rows", [DRAFTS, MIXED], ids=["drafts", "mixed"])
def test_cache_in_fp8(rows: list[tuple[int, int]]) -> None:
    """The reference reads the same FP8 numbers, so only the order of sums differs."""
    heads = Heads(3, 1, 64)
    check(Step(rows, heads, kv_dtype=FP8), heads)


def test_fp8_keeps_what_three_bits_of_mantissa_can() -> None:
    heads = Heads(3, 1, 64)
    steps = [Step(MIXED, heads, kv_dtype=dtype) for dtype in (torch.float32, FP8)]
    attention = CardAttention(heads, 0.125, None, decode=DECODE, prompt=PROMPT)
    exact, coarse = (
        attention(step.qkv, step.kv, attention.plan(step.row_starts, step.context_lens, step.tables, step.bounds))
        for step in steps
    )

    assert 0 < (exact - coarse).norm() / exact.norm() < 0.06


def test_a_large_group_fills_a_tile_alone() -> None:
    heads = Heads(40, 1, 16)
    check(Step([(2, 30), (9, 12)], heads), heads)


def test_tokens_alone_and_with_drafts_behind_them_agree() -> None:
    heads = Heads(3, 1, 32)
    step = Step([(6, 60)], heads)
    attention = CardAttention(heads, 0.2, None, decode=DECODE, prompt=PROMPT)
    whole = attention(step.qkv, step.kv, attention.plan(step.row_starts, step.context_lens, step.tables, step.bounds))
    starts, context = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([55], dtype=torch.int32)

    one = attention(step.qkv[:1], step.kv, attention.plan(starts, context, step.tables, StepBounds(1, 1, 55)))

    torch.testing.assert_close(whole[:1], one, rtol=1e-5, atol=1e-5)


def test_a_step_without_rows() -> None:
    heads = Heads(3, 1, 32)
    nothing = torch.zeros(0, dtype=torch.int32)
    attention = CardAttention(heads, 1.0, None)
    plan = attention.plan(torch.zeros(1, dtype=torch.int32), nothing, nothing.view(0, 1), StepBounds(0, 0, 0))

    assert (0, 96) == attention(
        torch.zeros(0, heads.width), allocate_by_token(1, 16, 1, 32, torch.float32, CPU), plan
    ).shape
