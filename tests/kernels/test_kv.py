"""The cache gives back what was written, whatever its layout, and nothing that is not finite lives on in values."""

from __future__ import annotations

import psutil
import pytest
import torch

from threefold.kernels.kv import allocate


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [8, 16, 32, 5])
def test_read_gives_what_write_took(dtype: torch.dtype, block_size: int) -> None:
    torch.manual_seed(0)
    kv = allocate(6, block_size, 2, 64, dtype, torch.device("cpu"))
    blocks = torch.tensor([4, 1, 3])
    num_tokens = 3 * block_size - 2
    positions = torch.arange(num_tokens)
    slots = blocks[positions // block_size] * block_size + positions % block_size
    keys, values = torch.randn(2, num_tokens, 2, 64).to(dtype)

    kv.write(slots, keys, values)
    read_keys, read_values = kv.read(blocks, num_tokens)

    assert torch.equal(keys, read_keys)
    assert torch.equal(values, read_values)


def test_values_that_are_not_finite_are_stored_as_zeros() -> None:
    kv = allocate(1, 16, 1, 32, torch.float32, torch.device("cpu"))
    values = torch.ones(1, 1, 32)
    values[0, 0, 3], values[0, 0, 4] = float("nan"), float("inf")

    kv.write(torch.tensor([0]), torch.ones(1, 1, 32), values)

    assert [0.0, 0.0] == kv.read(torch.tensor([0]), 1)[1][0, 0, 3:5].tolist()


@pytest.mark.parametrize(
    ("block_size", "head_dim", "dtype", "is_vector"),
    [(16, 64, torch.bfloat16, True), (32, 64, torch.float32, True), (8, 64, torch.float32, False),
     (16, 8, torch.float32, False), (16, 64, torch.float16, False)],
)  # fmt: skip
def test_which_caches_the_compiled_bodies_serve(
    block_size: int, head_dim: int, dtype: torch.dtype, is_vector: bool
) -> None:
    assert is_vector == allocate(2, block_size, 1, head_dim, dtype, torch.device("cpu")).has_vector_layout


def test_a_step_of_padding_alone_writes_nothing() -> None:
    kv = allocate(3, 4, 2, 16, torch.float32, torch.device("cpu"))

    kv.write(torch.full((5,), -1), torch.ones(5, 2, 16), torch.ones(5, 2, 16))

    assert not kv.keys.any()
    assert not kv.values.any()


def test_a_cache_takes_no_memory_before_it_is_written() -> None:
    before = psutil.Process().memory_info().rss
    kv = allocate(16384, 16, 2, 64, torch.bfloat16, torch.device("cpu"))
    assert kv.num_bytes == 128 << 20
    assert psutil.Process().memory_info().rss - before < 32 << 20
    kv.keys[3:5].fill_(1.0)
    assert not kv.keys[5:].any(), "what was never written is finite"
