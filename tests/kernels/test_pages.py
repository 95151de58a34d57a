"""Memory in large pages: zeros at a page's start, and tensors gathered into it."""

from __future__ import annotations

import mmap

import pytest
import torch

from threefold.kernels.pages import PAGE_BYTES, WORTH_BYTES, gathered, zeros_in_large_pages


def test_zeros_at_a_page_s_start_that_may_be_written() -> None:
    memory = zeros_in_large_pages(PAGE_BYTES + 3)

    assert memory.shape == (PAGE_BYTES + 3,)
    assert memory.dtype == torch.uint8
    assert memory.data_ptr() % PAGE_BYTES == 0
    assert not memory.any()
    memory.fill_(7)
    assert (memory == 7).all()


def test_plain_memory_where_the_system_has_no_such_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")

    assert zeros_in_large_pages(100).tolist() == [0] * 100


def test_plain_memory_where_the_kernel_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1)

    assert zeros_in_large_pages(100).tolist() == [0] * 100


def test_gathered_tensors_lie_one_behind_another_and_large_ones_stay() -> None:
    small = [torch.randint(256, (3, 64), dtype=torch.uint8), torch.randint(256, (2, 128), dtype=torch.uint8)]
    large = torch.zeros(WORTH_BYTES, dtype=torch.uint8)
    given = [small[0], large, small[1]]

    first, same, second = gathered(given)

    assert same is large
    assert torch.equal(first, small[0])
    assert torch.equal(second, small[1])
    assert second.data_ptr() == first.data_ptr() + first.nbytes
    assert first.data_ptr() % PAGE_BYTES == 0
    assert not given
