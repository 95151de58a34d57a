from __future__ import annotations

import pytest

from threefold.bench.step_parts import parts_of, sum_parts
from threefold.bench.steps import DeviceTimes, Load, StepLine, _run, steps_lines, summary
from threefold.bench.steps_options import StepsOptions
from threefold.cache.manager import CacheManager
from threefold.draft.policy import NoDrafts
from threefold.engine.core import EngineCore
from threefold.engine.outputs import EngineInfo
from threefold.errors import ConfigError
from threefold.schedule.scheduler import Scheduler
from threefold.testing.fake_executor import FakeExecutor


@pytest.fixture
def make_core():
    def make(is_overlapped):
        scheduler = Scheduler(CacheManager(64, 16), NoDrafts(), max_num_seqs=4, max_num_batched_tokens=64)
        executor = FakeExecutor(step_s=0.0005)
        return EngineCore(scheduler, executor, vocab_size=256, is_overlapped=is_overlapped)

    return make


INFO = EngineInfo(
    model="fake",
    max_model_len=200,
    vocab_size=256,
    served_model_names=("fake",),
    eos_token_ids=(),
    num_blocks=64,
    block_size=16,
    max_num_seqs=4,
    max_num_queued_reqs=8,
)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_every_step_of_all_rows_is_timed(make_core, is_overlapped):
    core = make_core(is_overlapped)
    device = DeviceTimes(core.executor)
    core.executor = device
    asked = StepsOptions(rows=4, input_len=20, steps=10, warmups=2, profile_steps=0)
    lines = _run(core, device, Load(core, INFO, asked), asked.steps)
    assert [line.tokens for line in lines] == [4] * 10
    assert all(line.device_ms == 0.5 for line in lines)
    for line in lines:
        parts = line.plan_ms + line.launch_ms + line.wait_ms + line.commit_ms + line.stream_ms
        assert 0 < parts <= line.step_ms


def test_a_load_that_does_not_fit_is_refused(make_core):
    for asked in (StepsOptions(rows=5, input_len=8, steps=1), StepsOptions(rows=4, input_len=100, steps=200)):
        with pytest.raises(ConfigError, match=r"lower --rows, --input-len or --steps"):
            Load(make_core(False), INFO, asked)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_prompt_may_come_with_every_step(make_core, is_overlapped):
    core = make_core(is_overlapped)
    device = DeviceTimes(core.executor)
    core.executor = device
    load = Load(core, INFO, StepsOptions(rows=2, input_len=20, prompt_len=30, steps=10, warmups=2, profile_steps=0))
    _run(core, device, load, 2)
    assert [line.tokens for line in _run(core, device, load, 10)] == [3] * 10


def test_prompts_need_room_beside_the_rows(make_core):
    with pytest.raises(ConfigError, match="3 rows of 21 tokens do not fit beside prompts of 9"):
        Load(make_core(False), INFO, StepsOptions(rows=3, input_len=8, prompt_len=9, steps=1, warmups=0))


def test_medians_and_throughput():
    lines = [StepLine(4, 1.0, 1.0, 5.0, 1.0, 0.5, step_ms, 7.0, 1.2, 0.1) for step_ms in (8.0, 10.0, 12.0)]
    found = summary(lines)
    assert found["median_step_ms"] == 10.0
    assert found["output_throughput"] == pytest.approx(12 / 0.03)
    table = "\n".join(steps_lines({**found, "rows": 4, "parts_ms": {"attention": 1.5}}))
    assert "Idle, median (ms):                       0.100" in table
    assert "Draft, median (ms):                      1.200" in table
    assert "A step's attention (ms):                 1.500" in table


def test_kernels_are_sorted_by_their_names():
    kernels = [("attend_decode", 3.0), ("merge_splits", 1.0), ("nvjet_tst_128x8", 4.0), ("_few_tokens", 6.0),
               ("Memcpy HtoD (Pinned -> Device)", 1.0), ("_row_winner", 2.0),
               ("vectorized_elementwise_kernel", 3.0)]  # fmt: skip
    parts = sum_parts(kernels, num_steps=2)
    assert parts == {
        "attention": 2.0, "sampling": 1.0, "products": 5.0, "copies to and from the host": 0.5, "small ops": 1.5,
    }  # fmt: skip


def test_without_steps_nothing_is_profiled():
    assert parts_of(lambda: pytest.fail("run"), 0) == {}
