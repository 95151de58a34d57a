"""A draft model's KV inside its target's blocks: never outside the lent ones, whatever the two shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from threefold.errors import ConfigError
from threefold.kernels.kv import FP8
from threefold.layers.attention import allocate_kv
from threefold.models.spec import ModelSpec
from threefold.runner.lent_kv import lent_kv

BASE = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=64,
    hidden_size=64,
    num_layers=4,
    num_heads=8,
    num_kv_heads=8,
    head_dim=16,
    intermediate_size=64,
    max_positions=64,
)
SHAPES = [  # KV heads, head width and layers of the draft model
    (8, 16, 4),
    (2, 16, 2),
    (3, 16, 3),
    (1, 8, 4),
    (2, 16, 7),
    (1, 48, 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, FP8])
@pytest.mark.parametrize(("num_kv_heads", "head_dim", "num_layers"), SHAPES)
def test_what_is_written_to_lent_blocks_is_read_back_and_nothing_else_changes(
    num_kv_heads: int, head_dim: int, num_layers: int, dtype: torch.dtype
) -> None:
    draft = replace(BASE, num_kv_heads=num_kv_heads, head_dim=head_dim, num_layers=num_layers)
    kv = allocate_kv(BASE, 12, 4, dtype, torch.device("cpu"))
    for cache in kv:
        cache.keys.fill_(7.0)
        cache.values.fill_(7.0)
    lent = lent_kv(kv, draft, "small")
    block_ids = [3, 8, 5]
    units = lent.units(block_ids)
    num_tokens = len(units) * 4
    assert len(units) == len(block_ids) * lent.units_per_block == len(set(units))

    slots = torch.tensor([unit * 4 + i for unit in units for i in range(4)])
    shape = (2, num_tokens, num_kv_heads, head_dim)
    written = [torch.randn(shape).to(dtype).float() for _ in range(num_layers)]
    for cache, (keys, values) in zip(lent.caches, written, strict=True):
        cache.write(slots, keys, values)

    for cache, (keys, values) in zip(lent.caches, written, strict=True):
        read_keys, read_values = cache.read(torch.tensor(units), num_tokens)
        assert torch.equal(read_keys, keys)
        assert torch.equal(read_values, values)
    others = [block for block in range(12) if block not in block_ids]
    for cache in kv:
        assert (cache.keys.float()[others] == 7.0).all()
        assert (cache.values.float()[others] == 7.0).all()


def test_a_draft_model_that_is_too_large_is_refused_by_name() -> None:
    kv = allocate_kv(BASE, 12, 4, torch.float32, torch.device("cpu"))

    with pytest.raises(ConfigError, match=r"draft model 'big' .* must be much smaller"):
        lent_kv(kv, replace(BASE, num_kv_heads=16), "big")
    with pytest.raises(ConfigError, match="must be much smaller"):
        lent_kv(kv, replace(BASE, num_layers=5), "deep")
