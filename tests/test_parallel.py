"""A group of one changes nothing; shares must be even; two real ranks sum and gather."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from threefold.errors import ConfigError
from threefold.parallel import shard, single_group

RANK = """
import sys
import torch
import torch.distributed as dist
from threefold.parallel import DistributedGroup

store, rank = dist.FileStore(sys.argv[1], 2), int(sys.argv[2])
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
group = DistributedGroup(dist.group.WORLD)
part = torch.arange(4.0).view(2, 2) + 10 * group.rank
print(group.rank, group.size, group.all_gather(part).tolist(), group.all_reduce(part.clone()).tolist(), flush=True)
store.set(f"done {rank}", "")
store.wait([f"done {1 - rank}"])  # who leaves while the other still reads takes its connection away
dist.destroy_process_group()
"""


def test_a_group_of_one_changes_nothing() -> None:
    group, tensor = single_group(), torch.arange(3.0)

    assert (0, 1) == (group.rank, group.size)
    assert group.all_reduce(tensor) is group.all_gather(tensor) is tensor


def test_shard() -> None:
    assert 7 == shard(7, single_group(), "heads")


def test_two_ranks(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in ranks]

    both = "[[0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]] [[10.0, 12.0], [14.0, 16.0]]"
    assert [f"0 2 {both}", f"1 2 {both}"] == answers


def test_an_uneven_share_is_refused() -> None:
    class Three:
        rank, size = 0, 3

    with pytest.raises(ConfigError, match="does not divide the model's heads"):
        shard(8, Three(), "heads")  # type: ignore[arg-type]
