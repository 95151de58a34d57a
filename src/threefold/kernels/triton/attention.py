"""Paged attention on a card: which of the two bodies serves which rows, and how contexts are split.

Rows of a few new tokens go to attention_decode, longer ones to attention_prompt; in a mixed step both run over the same
rows and each leaves the other's alone. Everything follows from shapes and bounds. Contract: kernels/attention.py.
"""

from __future__ import annotations

import torch
import triton

from threefold.kernels.attention import CardPlan, StepBounds
from threefold.kernels.kv import KVCache
from threefold.kernels.rotary import Heads
from threefold.kernels.triton.attention_decode import attend_decode, merge_splits
from threefold.kernels.triton.attention_prompt import attend_prompt
from threefold.kernels.triton.attention_tile import NO_WINDOW
from threefold.kernels.triton.tables import DecodeSizes, PromptSizes, decode_sizes, prompt_sizes

MAX_DECODE_TOKENS = 17
"""A token and sixteen drafts."""
WORTHLESS_SPLITS = 2
"""What two splits of a context save is less than what merging them costs (`bench.kernels_chain`, 32 rows)."""
_MIN_M = 16  # rows of the smallest product of the tensor cores
_MAX_DECODE_M = 128
_MIXED_DECODE_M = 32  # beside prompts the longest short row is not known: this serves a few drafts and wastes little
_WIDE_M = 128  # from here on a tile takes eight warps: its accumulator would fill the registers of four
_MAX_SPLITS = 64
_LOG2_E = 1.4426950408889634


class CardAttention:
    """Attention for some heads and one window.

    Args:
        heads: of this rank.
        scale: factor on the scores.
        window: tokens a query may look back on, itself included; None = all.
        decode: block sizes, instead of the table's.
        prompt: block sizes, instead of the table's.
        max_splits: of a context, at most.
    """

    def __init__(
        self,
        heads: Heads,
        scale: float,
        window: int | None,
        *,
        decode: DecodeSizes | None = None,
        prompt: PromptSizes | None = None,
        max_splits: int = _MAX_SPLITS,
    ) -> None:
        self._heads = heads
        self._score_scale = scale * _LOG2_E
        self._window = window or NO_WINDOW.value
        self._padded_dim = max(_MIN_M, triton.next_power_of_2(heads.head_dim))
        self._decode = decode
        self._prompt = prompt
        self._max_splits = max_splits

    def plan(
        self, row_starts: torch.Tensor, context_lens: torch.Tensor, block_tables: torch.Tensor, bounds: StepBounds
    ) -> CardPlan:
        """Prepare a step: nothing is read back from the card."""
        num_rows = min(context_lens.shape[0], bounds.num_tokens)
        max_decode = self._max_decode(num_rows, bounds.max_new)
        num_splits = self._num_splits(num_rows, bounds) if max_decode else 1
        shape = (num_rows, max_decode, self._heads.num_heads, num_splits) if num_splits > 1 else (0, 0, 0, 0)
        shares, peaks, totals = (
            torch.empty(size, dtype=torch.float32, device=row_starts.device)
            for size in ((*shape, self._heads.head_dim), shape, shape)
        )
        return CardPlan(
            row_starts=row_starts,
            context_lens=context_lens,
            block_tables=block_tables.contiguous(),
            num_live_rows=num_rows,
            max_decode=max_decode,
            num_splits=num_splits,
            has_prompts=bounds.max_new > max_decode,
            shares=shares,
            peaks=peaks,
            totals=totals,
        )

    def _max_decode(self, num_rows: int, max_new: int) -> int:
        """Longest row that split contexts serve."""
        if max_new <= MAX_DECODE_TOKENS and max_new * self._heads.group <= _MAX_DECODE_M:
            return max_new
        if num_rows == 1:
            return 0
        return min(MAX_DECODE_TOKENS, max(1, _MIXED_DECODE_M // self._heads.group))

    def _num_splits(self, num_rows: int, bounds: StepBounds) -> int:
        """Enough for every multiprocessor; each split takes one block at least of the longest context there may be."""
        sizes = self._decode or decode_sizes(self._padded_dim, 2)
        context = bounds.max_context
        if self._window:
            context = min(context, self._window + bounds.max_new)
        wanted = sizes.num_programs // max(1, num_rows * self._heads.num_kv_heads)
        splits = max(1, min(wanted, triton.cdiv(context, sizes.block_n), self._max_splits))
        return 1 if splits <= WORTHLESS_SPLITS else int(splits)

    def __call__(self, qkv: torch.Tensor, kv: KVCache, plan: CardPlan) -> torch.Tensor:
        """Attend, as PagedAttention does; kv lies token by token."""
        assert kv.has_token_layout and qkv.is_contiguous(), "the cache lies by token, qkv token after token"
        heads = self._heads
        out = qkv.new_empty((qkv.shape[0], heads.num_heads * heads.head_dim))
        if plan.num_live_rows == 0:
            return out
        if plan.max_decode:
            self._attend_decode(qkv, kv, plan, out)
        if plan.has_prompts:
            self._attend_prompt(qkv, kv, plan, out)
        return out

    def _attend_decode(self, qkv: torch.Tensor, kv: KVCache, plan: CardPlan, out: torch.Tensor) -> None:
        heads = self._heads
        sizes = self._decode or decode_sizes(self._padded_dim, kv.keys.element_size())
        block_m = max(_MIN_M, triton.next_power_of_2(plan.max_decode * heads.group))
        states = (plan.shares, plan.peaks, plan.totals)
        attend_decode[(heads.num_kv_heads, plan.num_live_rows, plan.num_splits)](
            qkv,
            *self._context(kv, plan),
            out,
            *states,
            plan.block_tables.shape[1],
            plan.max_decode,
            plan.num_splits,
            self._score_scale,
            **self._constants(kv),
            BLOCK_M=block_m,
            BLOCK_N=sizes.block_n,
            IS_SPLIT=plan.num_splits > 1,
            num_warps=sizes.num_warps if block_m < _WIDE_M else 2 * sizes.num_warps,
            num_stages=sizes.num_stages,
        )
        if plan.num_splits == 1:
            return
        merge_splits[(heads.num_heads, plan.max_decode, plan.num_live_rows)](
            plan.row_starts,
            plan.context_lens,
            out,
            *states,
            plan.max_decode,
            plan.num_splits,
            NUM_HEADS=heads.num_heads,
            HEAD_DIM=heads.head_dim,
            PADDED_DIM=self._padded_dim,
            BLOCK_N=sizes.block_n,
            MAX_SPLITS=_MAX_SPLITS,
            WINDOW=self._window,
            num_warps=2,
        )

    def _attend_prompt(self, qkv: torch.Tensor, kv: KVCache, plan: CardPlan, out: torch.Tensor) -> None:
        heads = self._heads
        sizes = self._prompt or prompt_sizes(self._padded_dim, kv.keys.element_size())
        block_m = max(sizes.block_m, triton.next_power_of_2(heads.group))
        num_tiles = qkv.shape[0] // (block_m // heads.group) + plan.num_live_rows
        attend_prompt[(heads.num_kv_heads, num_tiles)](
            qkv,
            *self._context(kv, plan),
            out,
            plan.num_live_rows,
            plan.block_tables.shape[1],
            plan.max_decode + 1,
            self._score_scale,
            **self._constants(kv),
            BLOCK_M=block_m,
            BLOCK_N=sizes.block_n,
            num_warps=sizes.num_warps,
            num_stages=sizes.num_stages,
        )

    @staticmethod
    def _context(kv: KVCache, plan: CardPlan) -> tuple[torch.Tensor, ...]:
        """Operands of both bodies, in order."""
        return (
            kv.keys,
            kv.values,
            kv.key_scale,
            kv.value_scale,
            plan.row_starts,
            plan.context_lens,
            plan.block_tables,
        )

    def _constants(self, kv: KVCache) -> dict[str, int]:
        """Constants of both bodies."""
        return {
            "NUM_HEADS": self._heads.num_heads,
            "NUM_KV_HEADS": self._heads.num_kv_heads,
            "HEAD_DIM": self._heads.head_dim,
            "PADDED_DIM": self._padded_dim,
            "BLOCK_SIZE": kv.block_size,
            "WINDOW": self._window,
        }
