import itertools

import pytest

from threefold.advise.drive import Ask, Drive
from threefold.cache.manager import CacheManager
from threefold.draft.policy import NoDrafts
from threefold.engine.core import EngineCore
from threefold.schedule.scheduler import Scheduler
from threefold.testing.fake_executor import FakeExecutor
from threefold.testing.fake_model import FakeModel


def core(max_num_seqs: int = 8) -> EngineCore:
    scheduler = Scheduler(CacheManager(200, 16), NoDrafts(), max_num_seqs=max_num_seqs, max_num_batched_tokens=256)
    return EngineCore(scheduler, FakeExecutor(FakeModel()), vocab_size=300)


def ticking():
    ticks = itertools.count()
    return lambda: next(ticks) * 0.001


def test_every_answer_is_whole():
    asks = [Ask([1, 2, 3, index], 5 + index) for index in range(10)]
    drive = Drive(core(), clock=ticking())
    result = drive.run(asks, 3)
    assert [len(drive.outputs[place]) for place in range(10)] == [5 + index for index in range(10)]
    assert (result.num_done, result.output_tokens) == (10, sum(range(5, 15)))
    assert len(result.ttft_ms) == len(result.tpot_ms) == 10
    assert 0 < result.mean_running <= 3


def test_a_static_batch_waits_for_its_last():
    asks = [Ask([1, 2, index], 2 if index % 2 else 40) for index in range(8)]
    flowing = Drive(core(), clock=ticking()).run(asks, 4)
    static = Drive(core(), clock=ticking()).run(asks, 4, is_static=True)
    assert static.duration_s > 1.2 * flowing.duration_s
    assert max(static.ttft_ms) > 3 * max(flowing.ttft_ms), "who is done early waits to ask again, and that counts"


def test_one_at_a_time_makes_the_others_wait():
    asks = [Ask([1, 2, index], 10) for index in range(4)]
    alone = Drive(core(max_num_seqs=1), clock=ticking()).run(asks, 4)
    together = Drive(core(), clock=ticking()).run(asks, 4)
    assert alone.duration_s > 3 * together.duration_s


@pytest.mark.parametrize("asks", [[], [Ask([], 5)], [Ask([1] * 4000, 10)]])
def test_what_cannot_run_ends(asks):
    result = Drive(core(), clock=ticking()).run(asks, 2)
    assert (result.num_done, result.num_too_long) == (0, len(asks))
