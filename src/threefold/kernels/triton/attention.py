"""Paged attention on a card: which launch serves which step.

Steps whose rows all have few new tokens go to attention_decode, those that may have prompts to attention_mixed.
Everything follows from shapes and bounds. Contract: kernels/attention.py.
"""

from __future__ import annotations

import torch
import triton

from threefold.kernels.attention import CardPlan, StepBounds
from threefold.kernels.kv import KVCache
from threefold.kernels.rotary import Heads
from threefold.kernels.triton.attention_decode import DecodeRows
from threefold.kernels.triton.attention_mixed import MixedRows
from threefold.kernels.triton.attention_tile import MIN_M, NO_WINDOW, Served
from threefold.kernels.triton.tables import DecodeSizes, PromptSizes, decode_sizes, mixed_sizes, prompt_sizes

MAX_DECODE_TOKENS = 17
"""A token and sixteen drafts."""
_MAX_DECODE_M = 128
_LOG2_E = 1.4426950408889634


class CardAttention:
    """Attention for some heads and one window.

    Args:
        heads: of this rank.
        scale: factor on the scores.
        window: tokens a query may look back on, itself included; None = all.
        decode: block sizes, instead of the tables'.
        prompt: block sizes, instead of the tables'.
        max_splits: of a context, at most; None = as many as pay.
    """

    def __init__(
        self,
        heads: Heads,
        scale: float,
        window: int | None,
        *,
        decode: DecodeSizes | None = None,
        prompt: PromptSizes | None = None,
        max_splits: int | None = None,
    ) -> None:
        padded_dim = max(MIN_M, int(triton.next_power_of_2(heads.head_dim)))
        self._served = Served(heads, scale * _LOG2_E, window or NO_WINDOW.value, padded_dim)
        self._decode = decode
        self._prompt = prompt
        self._max_splits = max_splits

    def plan(
        self,
        row_starts: torch.Tensor,
        context_lens: torch.Tensor,
        block_tables: torch.Tensor,
        bounds: StepBounds,
        kv_bytes: int = 2,
    ) -> CardPlan:
        """Prepare a step over caches of kv_bytes a number: nothing is read back from the card."""
        rows = (row_starts, context_lens, block_tables.contiguous())
        num_rows, width = min(context_lens.shape[0], bounds.num_tokens), self._served.padded_dim
        is_few = bounds.max_new <= min(MAX_DECODE_TOKENS, _MAX_DECODE_M // self._served.heads.group)
        launch: DecodeRows | MixedRows | None = None
        if num_rows and is_few:
            sizes = self._decode or self._decode_sizes(num_rows, bounds.max_new, kv_bytes)
            launch = DecodeRows(self._served, rows, num_rows, bounds, sizes, self._max_splits)
        elif num_rows == 1:
            launch = MixedRows(self._served, rows, 1, bounds, None, self._prompt or prompt_sizes(width, kv_bytes))
        elif num_rows:
            few, tile = mixed_sizes(width, kv_bytes)
            launch = MixedRows(self._served, rows, num_rows, bounds, self._decode or few, self._prompt or tile)
        return CardPlan(*rows, launch)

    def _decode_sizes(self, num_rows: int, max_new: int, kv_bytes: int) -> DecodeSizes:
        served = self._served
        is_narrow = served.few_m(max_new) == MIN_M
        return decode_sizes(served.padded_dim, kv_bytes, num_rows * served.heads.num_kv_heads, is_narrow=is_narrow)

    def __call__(self, qkv: torch.Tensor, kv: KVCache, plan: CardPlan) -> torch.Tensor:
        """Attend, as PagedAttention does; kv lies token by token."""
        assert kv.has_token_layout and qkv.is_contiguous(), "the cache lies by token, qkv token after token"
        heads = self._served.heads
        out = qkv.new_empty((qkv.shape[0], heads.num_heads * heads.head_dim))
        if plan.launch is not None:
            plan.launch(qkv, kv, out)
        return out
