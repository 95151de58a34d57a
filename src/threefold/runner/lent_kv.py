"""A draft model's KV inside the blocks of its target's: no memory is set aside for it, so none is lost while it is off.

A layer of the target keeps `block elements` numbers a block and tensor, the draft model needs fewer of them. So the
target's tensor is read as a row of units, each as large as a draft block; those wholly within a lent block are usable:

    target   |        block 0        |        block 1        |  …
    units    |  0  |  1  |  2  |  3  |  4  |  5  |  6  |  …      unit 3 straddles: never used

A draft model with more layers than the target puts several layers side by side into each. Knows nothing about lending.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from threefold.errors import ConfigError
from threefold.kernels.kv import KVCache, allocate
from threefold.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LentKV:
    """The draft model's view of the pool."""

    caches: list[KVCache]
    """One a layer of the draft model, over the target's memory; block ids are units."""
    units_per_block: int
    """Draft blocks that a lent block holds, for every layer."""
    block_elements: int
    """Numbers of one target block, in keys or values of one layer."""
    unit_elements: int
    """Numbers of one draft block."""

    def units(self, block_ids: Iterable[int]) -> list[int]:
        """The draft blocks within lent blocks, in order."""
        firsts = (-(-block_id * self.block_elements // self.unit_elements) for block_id in block_ids)
        return [first + i for first in firsts for i in range(self.units_per_block)]


def lent_kv(kv: list[KVCache], draft: ModelSpec, draft_name: str) -> LentKV:
    """See the target's KV memory as the draft model's.

    Args:
        kv: the target's caches.
        draft: the draft model, whose KV has the target's dtype.
        draft_name: for the message.

    Raises:
        ConfigError: a block of the draft model does not fit into a block of the target.
    """
    block_elements = kv[0].keys.numel() // len(kv[0].keys)
    unit_elements = kv[0].block_size * draft.num_kv_heads * draft.head_dim
    num_whole = block_elements // unit_elements - (block_elements % unit_elements > 0)
    layers_per_cache = -(-draft.num_layers // len(kv))
    units_per_block = num_whole // layers_per_cache
    if units_per_block < 1:
        raise ConfigError(
            f"draft model '{draft_name}' keeps {draft.num_layers} × {unit_elements} numbers of KV a block, too many to "
            f"lie in the target's {len(kv)} × {block_elements}; a draft model must be much smaller than its target"
        )
    caches = [
        _in_units(kv[layer % len(kv)], draft, layer // len(kv) * units_per_block) for layer in range(draft.num_layers)
    ]
    return LentKV(caches, units_per_block, block_elements, unit_elements)


def _in_units(cache: KVCache, draft: ModelSpec, first_unit: int) -> KVCache:
    """A cache's memory from some unit on, in the layout of a draft layer."""
    keys = cache.keys
    one = allocate(1, cache.block_size, draft.num_kv_heads, draft.head_dim, keys.dtype, keys.device)
    num_units = keys.numel() // one.keys.numel() - first_unit
    memory = slice(first_unit * one.keys.numel(), (first_unit + num_units) * one.keys.numel())
    return replace(
        one,
        keys=keys.view(-1)[memory].view(num_units, *one.keys.shape[1:]),
        values=cache.values.view(-1)[memory].view(num_units, *one.values.shape[1:]),
    )
