"""Bodies run on torch's own threads, and alone where its OpenMP runtime is not to be had."""

from __future__ import annotations

import ctypes

import pytest
import torch

from threefold.kernels.native import team
from threefold.kernels.native.team import fingerprint
from threefold.kernels.native.vector import peek_i64, poke_i64, take_next


def counting_body() -> team.Run:
    """Writes 7 times its number behind each item."""
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        while True:
            item = take_next(args)
            if item >= peek_i64(args + 8):
                return
            poke_i64(peek_i64(args + 16) + 8 * item, 7 * item)

    return team.Run(body, 1)


@pytest.mark.parametrize("num_items", [0, 1, 2, 1000])
@pytest.mark.parametrize("is_alone", [False, True])
def test_every_item_is_done_once_the_call_returns(
    num_items: int, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_alone:
        monkeypatch.setattr(team, "find_team", lambda: None)
    out = torch.full((1001,), -1, dtype=torch.int64)

    counting_body()(num_items, out.data_ptr())

    assert [7 * item for item in range(num_items)] == out[:num_items].tolist()
    assert (out[num_items:] == -1).all()


def test_no_fork_where_torch_has_no_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "native threads")
    assert team.find_team.__wrapped__() is None


def test_no_fork_where_the_runtime_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "PyDLL", missing)
    assert team.find_team.__wrapped__() is None
