"""Chains: every body sees all that the one before it did, on all threads and on one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from threefold.kernels.native import chain, team
from threefold.kernels.native.chain import Chain
from threefold.kernels.native.team import fingerprint
from threefold.kernels.native.vector import peek_i64, poke_i64, take_next

NUM_ITEMS = 257


def neighbours_body() -> team.Run:
    """out[i] = in[i] + in[i + 1], in a ring."""
    source = fingerprint()

    def body(args: int) -> None:
        _ = source
        numbers, out, count = peek_i64(args + 16), peek_i64(args + 24), peek_i64(args + 8)
        while True:
            item = take_next(args)
            if item >= count:
                return
            poke_i64(out + 8 * item, peek_i64(numbers + 8 * item) + peek_i64(numbers + 8 * ((item + 1) % count)))

    return team.Run(body, 2)


@pytest.fixture
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of torch; more than there are cores, so that some wait long enough to sleep."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_threads", [1, 2, 5], indirect=True)
@pytest.mark.parametrize("is_alone", [False, True])
def test_links_run_in_order_again_and_again(num_threads: int, is_alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.get_num_threads() == num_threads
    if is_alone:
        for module in (team, chain):
            monkeypatch.setattr(module, "find_team", lambda: None)
    buffers = torch.zeros(2, NUM_ITEMS, dtype=torch.int64)
    links = Chain([neighbours_body()] * 20)
    for index, frame in enumerate(links.frames):
        frame[1:4] = NUM_ITEMS, buffers[index % 2].data_ptr(), buffers[(index + 1) % 2].data_ptr()

    for _ in range(30):
        expected = torch.randint(100, (NUM_ITEMS,))
        buffers[0] = expected
        links.run()

        for _ in range(20):
            expected = expected + expected.roll(-1)
        assert torch.equal(buffers[0], expected)


def test_frames_begin_on_cache_lines_and_hold_the_longest() -> None:
    frames = Chain([neighbours_body(), neighbours_body()]).frames

    assert frames.shape[1] >= 4
    assert frames.strides[0] % 64 == 0
    assert frames.ctypes.data % 64 == 8  # behind what the chain itself counts


def test_a_link_without_items_is_passed_over() -> None:
    buffer = torch.ones(2, dtype=torch.int64)
    links = Chain([neighbours_body()] * 3)
    for frame, num_items in zip(links.frames, (0, 1, 0), strict=True):
        frame[1:4] = num_items, buffer.data_ptr(), buffer.data_ptr()

    links.run()

    assert buffer.tolist() == [2, 1]
