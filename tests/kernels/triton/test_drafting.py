"""Triton's bodies around a draft model's passes, interpreted, against their contract."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels import drafting
from threefold.kernels.triton import drafting as triton_drafting

MAX_ROWS, WIDTH, BLOCK = 6, 5, 4


def make_state(rows: list[int], most: int = 8) -> tuple[torch.Tensor, drafting.RoundState]:
    """A state of so many rows among room for more, and the whole of it."""
    dice = torch.Generator().manual_seed(len(rows))
    num = len(rows)
    whole = torch.randint(0, 2, (4, most), generator=dice)
    whole[0, :num] = torch.tensor(rows)
    whole[1, :num] = torch.randint(1, WIDTH * BLOCK, (num,), generator=dice)
    whole[2, :num] = torch.randint(1, WIDTH * BLOCK, (num,), generator=dice)
    return whole, drafting.RoundState(*whole[:, :num])


def tables() -> torch.Tensor:
    return torch.randperm(MAX_ROWS * WIDTH, generator=torch.Generator().manual_seed(1)).int().view(MAX_ROWS, WIDTH)


ROWS = [[2], [5, 0, 3], [1, 4, MAX_ROWS], [MAX_ROWS, MAX_ROWS]]


@pytest.mark.parametrize("rows", ROWS)
def test_next_inputs(rows: list[int]) -> None:
    tokens = torch.arange(100, 100 + MAX_ROWS + 1)
    whole, state = make_state(rows)
    before = whole.clone()
    expected = drafting.next_inputs_reference(state, tokens, tables(), BLOCK)
    made = triton_drafting.next_inputs_body(state, tokens, tables(), BLOCK)
    for name, one, other in zip(made._fields, made, expected, strict=True):
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name
    assert torch.equal(whole, before)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("max_draft", [1, 3, 4])
def test_judged_inputs(rows: list[int], max_draft: int) -> None:
    dice = torch.Generator().manual_seed(max_draft)
    num, num_fields = len(rows), len(drafting.ASKED)
    target_tokens = torch.randint(0, 3, (30,), generator=dice)
    for _ in range(12):
        num_drafts = torch.randint(0, max_draft + 1, (num,), generator=dice)
        asked = torch.zeros(num_fields + max_draft, num, dtype=torch.int64)
        asked[0] = torch.tensor(rows)
        asked[1] = torch.randint(1, 12, (num,), generator=dice)
        asked[2] = torch.randint(0, 50, (num,), generator=dice)
        asked[3] = torch.randint(1, WIDTH * BLOCK, (num,), generator=dice)
        asked[4] = (num_drafts + 1).cumsum(0) - num_drafts - 1
        asked[5] = num_drafts
        asked[6] = torch.minimum(torch.randint(-1, max_draft + 1, (num,), generator=dice), num_drafts)
        asked[num_fields:] = torch.randint(-30, 3, (max_draft, num), generator=dice)
        asked[:, asked[0] == MAX_ROWS] = 0
        asked[0] = torch.tensor(rows)
        drawn = torch.randint(0, 3, (int((num_drafts + 1).sum()),), generator=dice)
        (whole, state), (other_whole, other) = make_state(rows), make_state(rows)
        expected = drafting.judged_inputs_reference(state, asked, drawn, target_tokens, tables(), BLOCK)
        made = triton_drafting.judged_inputs_body(other, asked, drawn, target_tokens, tables(), BLOCK)
        for name, one, reference in zip(made._fields, made, expected, strict=True):
            assert one.dtype == reference.dtype, name
            assert torch.equal(one, reference), name
        assert torch.equal(whole, other_whole)


@pytest.mark.parametrize("vocab", [7, triton_drafting.PIECE, 2 * triton_drafting.PIECE + 5])
@pytest.mark.parametrize("rows", [[2], [5, 0, MAX_ROWS]])
def test_note_choices(rows: list[int], vocab: int) -> None:
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(4)) * 3
    logits[0, vocab // 2] = logits[0].max()
    logits[-1, : vocab // 3] = -torch.inf
    results = []
    for body in (drafting.note_choices_reference, triton_drafting.note_choices_body):
        whole, state = make_state(rows)
        state.rounds.copy_(torch.arange(len(rows)) % 2)
        tokens, out = torch.zeros(MAX_ROWS + 1, dtype=torch.int64), torch.zeros(3, 2, 8, dtype=torch.int32)
        body(logits, state, tokens, out)
        results.append((whole, tokens, out[:, 0], out[:, 1].contiguous().view(torch.float32)))
    for expected, made in zip(*results, strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=0)
