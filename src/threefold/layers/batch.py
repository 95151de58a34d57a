"""The tensors that describe one step's tokens to the layers: which token, which row, which slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class Batch:
    """One step's tokens, rows one after another, no padding between them.

    Behind them may be padding, for steps of fixed shapes: tokens whose slot is -1, rows that start where the real
    tokens end. What is computed for padded tokens means nothing; max_new and max_context are then bounds.

        tokens      [ row 0 ....... | row 1 | row 2 ...... ]
        row_starts   0               s1      s2             num_tokens

    Prompt chunks, single tokens and tokens with drafts behind them are one case.
    """

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64, position of each token in its own request
    slots: torch.Tensor  # [num_tokens] int64, block id * block_size + offset: where the token's KV goes; -1 = nowhere
    row_starts: torch.Tensor  # [num_rows + 1] int32, first token of each row
    context_lens: torch.Tensor  # [num_rows] int32, tokens of the row whose KV is valid after this step
    block_tables: torch.Tensor  # [num_rows, max_blocks] int32; entries beyond a row's blocks are any valid id
    logit_tokens: torch.Tensor  # [num_logits] int64, indices of the tokens whose logits are wanted
    max_new: int  # longest row of this step, tokens
    max_context: int  # longest of context_lens

    @property
    def num_tokens(self) -> int:
        """Tokens fed in this step."""
        return int(self.token_ids.shape[0])

    @property
    def num_rows(self) -> int:
        """Rows of this step."""
        return int(self.context_lens.shape[0])
