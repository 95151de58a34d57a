"""A step's integers on a card: from the buffer in which they came up to what the layers want.

    staged ints ─► token ids (those that only the device knows put in), positions, slots, … as int64
    rows        ─► their block tables

Nothing waits for the device: it may stand in a captured graph. On a card it is one kernel in place of seven, which a
step of a small model is short enough to show. Knows nothing about what the integers are but where the token ids end.
"""

from __future__ import annotations

import torch

from threefold.kernels.bodies import is_triton


def unpack_step(
    staged: torch.Tensor, num_ids: int, row_ids: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Widen integers, put in tokens, gather tables.

    Args:
        staged: [num_staged] int32, token ids first; one of -1 - place stands for the token at that place.
        num_ids: how many are token ids.
        row_ids: [num_rows] int32.
        tokens: int64, by place.
        tables: [max_rows, max_blocks] int32.

    Returns:
        [num_staged] int64 and [num_rows, max_blocks] int32.
    """
    if is_triton(staged.device, torch.float32):
        from threefold.kernels.triton.staged import unpack_step_body

        return unpack_step_body(staged, num_ids, row_ids, tokens, tables)
    return unpack_step_reference(staged, num_ids, row_ids, tokens, tables)


def unpack_step_reference(
    staged: torch.Tensor, num_ids: int, row_ids: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract in torch."""
    longs = staged.long()
    ids = longs[:num_ids]
    ids.copy_(torch.where(ids < 0, tokens[(-1 - ids).clamp_(min=0)], ids))
    return longs, tables.index_select(0, row_ids)
