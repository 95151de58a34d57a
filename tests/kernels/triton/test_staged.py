"""Triton's way from staged integers to what layers want, interpreted, against its contract."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.staged import unpack_step_reference
from threefold.kernels.triton.staged import PIECE, unpack_step_body

MAX_ROWS = 6


@pytest.mark.parametrize("num_staged", [4, 60, PIECE, 2 * PIECE + 8])
@pytest.mark.parametrize("rows", [[3], [5, 0, 0, 2]])
@pytest.mark.parametrize("width", [1, 5, 130])
def test_body_equals_reference(num_staged: int, rows: list[int], width: int) -> None:
    dice = torch.Generator().manual_seed(num_staged)
    staged = torch.randint(-5, 1000, (num_staged,), generator=dice, dtype=torch.int32)
    staged[num_staged // 2 :] = -1  # beyond the token ids it means what it is
    num_ids, row_ids = num_staged // 4 + 1, torch.tensor(rows, dtype=torch.int32)
    staged[0], tokens = -3, torch.arange(100, 105)
    tables = torch.randint(0, 99, (MAX_ROWS, width), generator=dice, dtype=torch.int32)
    before = staged.clone(), tokens.clone(), tables.clone()

    longs, own_tables = unpack_step_body(staged, num_ids, row_ids, tokens, tables)
    expected_longs, expected_tables = unpack_step_reference(staged, num_ids, row_ids, tokens, tables)

    assert torch.equal(longs, expected_longs)
    assert torch.equal(own_tables, expected_tables)
    assert (longs.dtype, own_tables.dtype) == (torch.int64, torch.int32)
    assert longs[0] == 102
    assert longs[-1] == -1
    assert all(torch.equal(one, other) for one, other in zip((staged, tokens, tables), before, strict=True))
