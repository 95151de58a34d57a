"""Attention of new tokens over their rows' paged context.

Contract: the i-th of a row's n new tokens, with c tokens of context, stands at position p = c - n + i and sees the
positions p - window + 1 .. p; softmax(q · k · scale) v, sums in float32; query heads share KV heads in groups.

What depends on a step's rows alone is worked out once a step, in a plan, and serves every layer. On a card the rows
stay there: a plan is made from shapes and bounds, nothing is read back, so it may be captured into a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from threefold.kernels.bodies import is_native, is_triton
from threefold.kernels.kv import KVCache
from threefold.kernels.rotary import Heads
from threefold.kernels.rows import Item, RowSpan, in_parts, longest_first, whole_items

if TYPE_CHECKING:
    from threefold.kernels.triton.attention import CardAttention

_LOG2_E = 1.4426950408889634
_NO_WINDOW = 1 << 40
_MIN_ITEMS = 12  # with fewer, a thread idles too long at the end: contexts are then cut into parts


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A step's rows, prepared for all layers that share a window; rows known on the host."""

    rows: list[RowSpan]
    block_tables: torch.Tensor  # [num_rows, max_blocks] int32
    items: torch.Tensor  # [num_items, fields of Item] int64
    states: torch.Tensor  # uint8, room for the states of contexts in parts
    parts_done: torch.Tensor  # [num_parts * num_kv_heads] int64, zero between calls


@dataclass(frozen=True, slots=True)
class CardPlan:
    """A step's rows on a card, which alone knows them; rows without new tokens stand behind all others."""

    row_starts: torch.Tensor  # [num_rows + 1] int32
    context_lens: torch.Tensor  # [num_rows] int32
    block_tables: torch.Tensor  # [num_rows, max_blocks] int32
    launch: Callable[[torch.Tensor, KVCache, torch.Tensor], None] | None  # (qkv, cache, out); None = no rows

    @property
    def rows(self) -> list[RowSpan]:
        """The rows, read back: for the reference alone."""
        return _spans(self.row_starts, self.context_lens)


AttentionPlan = HostPlan | CardPlan


def _spans(row_starts: torch.Tensor, context_lens: torch.Tensor) -> list[RowSpan]:
    starts = row_starts.tolist()
    return [RowSpan(starts[i], starts[i + 1] - starts[i], n) for i, n in enumerate(context_lens.tolist())]


def attend_reference(
    queries: torch.Tensor, kv: KVCache, plan: AttentionPlan, scale: float, window: int | None
) -> torch.Tensor:
    """The contract in torch: copies each row's context together and calls torch's attention on it.

    Args:
        queries: [num_tokens, num_heads, head_dim].
        kv: the layer's cache, the new tokens already in it.
        plan: the step's rows.
        scale: factor on the scores.
        window: tokens a query may look back on, itself included; None = all.

    Returns:
        [num_tokens, num_heads, head_dim].
    """
    out = torch.zeros_like(queries)  # tokens of no row stay zero
    for index, row in enumerate(plan.rows):
        num_blocks = -(-row.num_context // kv.block_size)
        context = kv.read(plan.block_tables[index, :num_blocks].long(), row.num_context)
        keys, values = (part.to(queries.dtype).transpose(0, 1)[None] for part in context)
        tokens = slice(row.first_token, row.first_token + row.num_new)
        out[tokens] = F.scaled_dot_product_attention(
            queries[tokens].transpose(0, 1)[None],
            keys,
            values,
            attn_mask=_visible(row, window, queries.device),
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
    return out


def _visible(row: RowSpan, window: int | None, device: torch.device) -> torch.Tensor:
    """[num_new, num_context] bool: which positions each new token sees."""
    position = torch.arange(row.num_context - row.num_new, row.num_context, device=device)[:, None]
    other = torch.arange(row.num_context, device=device)[None]
    is_seen = other <= position
    return is_seen if window is None else is_seen & (other > position - window)


class StepBounds(NamedTuple):
    """What the host knows of a step without reading its rows."""

    num_tokens: int
    """Tokens of the step, padding included."""
    max_new: int
    """No row has more new tokens."""
    max_context: int
    """No row has a longer context."""


def _read_bounds(row_starts: torch.Tensor, context_lens: torch.Tensor) -> StepBounds:
    rows = _spans(row_starts, context_lens)
    longest = max((row.num_new for row in rows), default=0)
    return StepBounds(sum(row.num_new for row in rows), longest, max((row.num_context for row in rows), default=0))


class PagedAttention:
    """Attention by the fastest body for its heads; one object serves all layers that share a window."""

    def __init__(
        self, heads: Heads, scale: float, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._heads = heads
        self._scale = scale
        self._window = window
        self._dtype = dtype
        self._device = device
        self._run: Callable[..., None] | None = None
        self._card: CardAttention | None = None
        if is_triton(device, dtype):
            from threefold.kernels.triton.attention import CardAttention

            self._card = CardAttention(heads, scale, window)
        elif is_native(device, dtype, heads.head_dim // 2):
            from threefold.kernels.native import attention as native

            self._run = native.attention_body(heads.head_dim, heads.group, dtype.itemsize)
            self._scale_bits = int(np.float32(scale * _LOG2_E).view(np.int32))
            self._max_item_tokens = native.item_tokens(heads.group)
            self._state_bytes = native.state_bytes(self._max_item_tokens * heads.group, heads.head_dim)

    def reads(self, kv: KVCache) -> bool:
        """Whether the compiled CPU body can read a cache."""
        return self._run is not None and kv.has_vector_layout and kv.keys.dtype == self._dtype

    def plan(
        self,
        row_starts: torch.Tensor,
        context_lens: torch.Tensor,
        block_tables: torch.Tensor,
        bounds: StepBounds | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> AttentionPlan:
        """Prepare a step.

        Args:
            row_starts: [num_rows + 1] int32, first token of each row.
            context_lens: [num_rows] int32, new tokens included.
            block_tables: [num_rows, max_blocks] int32.
            bounds: what a card may not read off the tensors; None = read them off, which waits for the card.
            kv_dtype: of the caches; None = the model's.
        """
        if self._card is not None:
            bounds = bounds or _read_bounds(row_starts, context_lens)
            kv_bytes = (kv_dtype or self._dtype).itemsize
            return self._card.plan(row_starts, context_lens, block_tables, bounds, kv_bytes)
        rows = _spans(row_starts, context_lens)
        items = self._items(rows) if self._run is not None else []
        num_parts = len(items) if any(item.num_parts > 1 for item in items) else 0
        num_counters = num_parts * self._heads.num_kv_heads
        return HostPlan(
            rows=rows,
            block_tables=block_tables.contiguous(),
            items=torch.from_numpy(np.array(items, dtype=np.int64)),
            states=torch.empty(num_counters * self._state_bytes if num_counters else 0, dtype=torch.uint8),
            parts_done=torch.zeros(num_counters, dtype=torch.int64),
        )

    def _items(self, rows: list[RowSpan]) -> list[Item]:
        items = whole_items(rows, self._max_item_tokens, self._window or _NO_WINDOW)
        if len(items) * self._heads.num_kv_heads < _MIN_ITEMS:
            items = in_parts(items)
        return longest_first(items)

    def __call__(self, qkv: torch.Tensor, kv: KVCache, plan: AttentionPlan) -> torch.Tensor:
        """Attend.

        Args:
            qkv: [num_tokens, heads.width], contiguous, queries rotated; keys and values are read from the cache.
            kv: the layer's cache, the new tokens already in it.
            plan: the step's.

        Returns:
            [num_tokens, num_heads * head_dim].
        """
        if self._card is not None and isinstance(plan, CardPlan):
            return self._card(qkv, kv, plan)
        if isinstance(plan, HostPlan) and self._run is not None and self.reads(kv):
            return self._native(self._run, qkv, kv, plan)
        width = self._heads.num_heads * self._heads.head_dim
        queries = qkv[:, :width].view(qkv.shape[0], -1, self._heads.head_dim)
        return attend_reference(queries, kv, plan, self._scale, self._window).flatten(1)

    def _native(self, run: Callable[..., None], qkv: torch.Tensor, kv: KVCache, plan: HostPlan) -> torch.Tensor:
        width = self._heads.num_heads * self._heads.head_dim
        out = qkv.new_empty((qkv.shape[0], width))
        run(*self.arguments(qkv, kv, plan, out.data_ptr(), width * qkv.element_size()))
        return out

    def arguments(self, qkv: torch.Tensor, kv: KVCache, plan: HostPlan, out: int, out_bytes: int) -> tuple[int, ...]:
        """What the compiled CPU body takes, its number of items first; out: where its results go."""
        heads, tables = self._heads, plan.block_tables
        return (
            plan.items.shape[0] * heads.num_kv_heads,
            qkv.data_ptr(),
            heads.width * qkv.element_size(),
            kv.keys.data_ptr(),
            kv.values.data_ptr(),
            tables.data_ptr(),
            tables.shape[1] * 4,
            plan.items.data_ptr(),
            out,
            out_bytes,
            self._scale_bits,
            heads.num_kv_heads,
            kv.block_size // 16,
            plan.states.data_ptr(),
            plan.parts_done.data_ptr(),
            self._window or _NO_WINDOW,
        )
