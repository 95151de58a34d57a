"""Log-probabilities as the API reports them: of the model itself, before any transform, temperature or filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from threefold.step import TokenLogprobs


class Choice(NamedTuple):
    """A token to be reported."""

    position: int
    """Index of its logits in the step."""
    token_id: int
    """The token chosen there."""
    num_top: int
    """How many of the most likely tokens to report beside it."""


class RawLogits:
    """Copies of some positions' logits, taken before transforms overwrite them.

    Args:
        logits: [num_positions, vocab] of the step.
        positions: those to keep.
    """

    def __init__(self, logits: torch.Tensor, positions: Sequence[int]) -> None:
        self._copies = logits[torch.tensor(positions, device=logits.device)]  # [len(positions), vocab]
        self._places = {position: place for place, position in enumerate(positions)}

    def report(self, choices: Sequence[Choice]) -> list[TokenLogprobs]:
        """One entry a choice, whose positions were kept."""
        if not choices:
            return []
        places = torch.tensor([self._places[choice.position] for choice in choices], device=self._copies.device)
        token_ids = [choice.token_id for choice in choices]
        return token_logprobs(self._copies[places], token_ids, [choice.num_top for choice in choices])


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Report tokens against the logits they were chosen from.

    Args:
        logits: [n, vocab] float32, raw.
        token_ids: [n] the token chosen at each position.
        num_top: [n] how many of the most likely tokens to report beside it.

    Returns:
        One entry a position. Rank counts the strictly more likely tokens, plus one.
    """
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1))  # [n, 1]
    total = logits.logsumexp(-1, keepdim=True)  # [n, 1]
    ranks = (logits > chosen).count_nonzero(-1) + 1
    values, ids = logits.topk(min(max(num_top), logits.shape[1]), dim=-1)
    columns = ((chosen - total).squeeze(1), ranks, values - total, ids)
    own, rank_of, top_values, top_ids = (column.tolist() for column in columns)
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=own[place],
            rank=rank_of[place],
            top=tuple(zip(top_ids[place][:num], top_values[place][:num], strict=True)),
        )
        for place, (token_id, num) in enumerate(zip(token_ids, num_top, strict=True))
    ]
