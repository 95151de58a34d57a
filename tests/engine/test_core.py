"""The heart, over a FakeExecutor."""

from __future__ import annotations

import pytest

from threefold.cache.manager import CacheManager
from threefold.cost import StepShape
from threefold.draft.controller import FixedDrafts, NoDrafts
from threefold.engine.core import EngineCore
from threefold.errors import ContextLengthError, InvalidRequestError
from threefold.request import FinishReason, Request, SamplingParams
from threefold.schedule.scheduler import Scheduler
from threefold.step import StepPlan, TokenDelta
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor

VOCAB = 256


def make_core(executor: FakeExecutor, num_drafts: int = 0) -> EngineCore:
    scheduler = Scheduler(
        CacheManager(num_blocks=16, block_size=4),
        FixedDrafts(num_drafts) if num_drafts else NoDrafts(),
        max_num_seqs=4,
        max_num_batched_tokens=16,
    )
    ticks = iter(range(10**6))
    return EngineCore(scheduler, executor, vocab_size=VOCAB, clock=lambda: float(next(ticks)))


def make_request(request_id: int, prompt: list[int], max_total_tokens: int = 40, **params: object) -> Request:
    wish = SamplingParams(**params)  # type: ignore[arg-type]
    return Request(request_id, prompt, wish, max_total_tokens=max_total_tokens, end_token_ids=frozenset())


def run(core: EngineCore) -> dict[int, list[TokenDelta]]:
    """All deltas by request, until there is nothing to do."""
    seen: dict[int, list[TokenDelta]] = {}
    while core.has_work:
        for delta in core.step():
            seen.setdefault(delta.request_id, []).append(delta)
    return seen


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_requests_get_what_the_model_says(num_drafts: int) -> None:
    executor = FakeExecutor(drafts=FakeDrafts(0.7))
    core = make_core(executor, num_drafts)
    prompts = [[1, 2, 3], [4] * 20, [1, 2, 3]]
    for request_id, prompt in enumerate(prompts):
        core.add_request(make_request(request_id, prompt))
    seen = run(core)

    for request_id, prompt in enumerate(prompts):
        tokens = [token_id for delta in seen[request_id] for token_id in delta.token_ids]
        assert tokens == executor.model.answer(prompt, max_total_tokens=40)
        assert seen[request_id][-1].finish_reason is FinishReason.LENGTH
    assert (core.stats().num_accepted_tokens > 0) == (num_drafts > 0)


def test_without_work_a_step_is_nothing() -> None:
    executor = FakeExecutor()
    core = make_core(executor)

    assert not core.has_work
    assert core.step() == []
    assert executor.num_steps == 0


@pytest.mark.parametrize("wrong", [-1, VOCAB, 2**31, 2**70])
def test_token_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    core = make_core(FakeExecutor())
    with pytest.raises(InvalidRequestError, match=f"token id {wrong} is outside the vocabulary of 256") as caught:
        core.add_request(make_request(0, [1, wrong, 2]))

    assert caught.value.param == "prompt"
    assert not core.has_work


def test_token_ids_in_parameters_are_checked_too() -> None:
    with pytest.raises(InvalidRequestError, match="token id 256"):
        make_core(FakeExecutor()).add_request(make_request(0, [1], stop_token_ids=(256,)))


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        make_core(FakeExecutor()).add_request(make_request(0, []))


@pytest.mark.parametrize(
    ("num_prompt", "max_total_tokens", "message"),
    [
        (40, 40, "the prompt has 40 tokens and the request may have 40 in all; at least one must be left"),
        (41, 40, "the prompt has 41 tokens"),
        (3, 65, "the request may grow to 65 tokens, the KV cache holds 64; ask for fewer tokens"),
    ],
)
def test_what_can_never_fit_is_refused(num_prompt: int, max_total_tokens: int, message: str) -> None:
    core = make_core(FakeExecutor())
    with pytest.raises(ContextLengthError, match=message):
        core.add_request(make_request(0, [1] * num_prompt, max_total_tokens))

    assert not core.has_work


def test_what_fits_exactly_is_taken() -> None:
    core = make_core(FakeExecutor())
    core.add_request(make_request(0, [1] * 63, 64))

    assert [delta.finish_reason for delta in run(core)[0]] == [FinishReason.LENGTH]


def test_a_fault_of_a_row_stays_with_its_request() -> None:
    executor = FakeExecutor()
    core = make_core(executor)
    for request_id in range(3):
        core.add_request(make_request(request_id, [request_id]))
    core.step()
    executor.row_faults[1] = "a bit fell over"
    seen = run(core)

    assert (seen[1][-1].finish_reason, seen[1][-1].error) == (FinishReason.ERROR, "a bit fell over")
    assert seen[0][-1].finish_reason is seen[2][-1].finish_reason is FinishReason.LENGTH
    assert core.stats().num_request_errors == 1


def test_a_fault_of_the_whole_step_is_the_end() -> None:
    executor = FakeExecutor()
    core = make_core(executor)
    core.add_request(make_request(0, [1]))
    executor.step_fault = RuntimeError("the card fell off")

    with pytest.raises(RuntimeError, match="the card fell off"):
        core.step()


def test_aborts_free_everything_at_once() -> None:
    core = make_core(FakeExecutor())
    for request_id in range(6):
        core.add_request(make_request(request_id, [request_id] * 5))
    core.step()
    core.abort([0, 1, 5, 77])
    core.abort([2, 3, 4, 0])

    stats = core.stats()
    assert not core.has_work
    assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)


def test_times_are_split_between_deciding_and_computing() -> None:
    core = make_core(FakeExecutor())
    core.add_request(make_request(0, [1], max_total_tokens=3))
    run(core)

    stats = core.stats()
    assert stats.num_steps == 2
    assert stats.step_s == 2 * 5.0, "plan, launch, wait, settle and report: one reading of the clock each"
    assert stats.schedule_s == 2 * 3.0


def test_a_leak_is_told_when_the_engine_falls_idle(caplog: pytest.LogCaptureFixture) -> None:
    cache = CacheManager(num_blocks=16, block_size=4)
    scheduler = Scheduler(cache, NoDrafts(), max_num_seqs=4, max_num_batched_tokens=16)
    core = EngineCore(scheduler, FakeExecutor(), vocab_size=VOCAB)
    core.add_request(make_request(0, [1], max_total_tokens=3))
    run(core)
    assert caplog.messages == []
    cache.allocate(make_request(1, [1]), 4)  # somebody else's, never freed
    core.add_request(make_request(2, [1], max_total_tokens=3))
    run(core)

    assert caplog.messages == ["1 KV blocks are held though no request runs: a leak in the engine, please report it"]


def test_reset_and_close() -> None:
    executor = FakeExecutor()
    core = make_core(executor)
    core.add_request(make_request(0, [1] * 9, max_total_tokens=12))
    run(core)
    assert core.stats().num_cached_blocks == 2

    assert core.reset_prefix_cache()
    assert core.stats().num_cached_blocks == 0
    core.close()
    assert executor.is_closed


def make_overlapped(executor: FakeExecutor, num_drafts: int = 0) -> EngineCore:
    core = make_core(executor, num_drafts)
    return EngineCore(core.scheduler, executor, vocab_size=VOCAB, is_overlapped=True)


def test_overlapped_the_next_step_is_launched_before_the_result_is_known() -> None:
    executor = FakeExecutor()
    core = make_overlapped(executor)
    core.add_request(make_request(0, [1, 2], max_total_tokens=5))
    seen = []
    while core.has_work:
        seen.append((executor.num_steps, [delta.token_ids for delta in core.step()]))
    answer = executor.model.answer([1, 2], max_total_tokens=5)
    assert seen == [(0, [answer[:1]]), (2, [answer[1:2]]), (3, [answer[2:3]])]
    assert executor.num_steps == 3, "a request that ends by length is not run once more"


def test_overlapped_a_stop_token_costs_one_row_for_nothing() -> None:
    executor = FakeExecutor()
    core = make_overlapped(executor)
    answer = executor.model.answer([1, 2], max_total_tokens=30)
    end = answer[4]
    request = Request(0, [1, 2], SamplingParams(), max_total_tokens=30, end_token_ids=frozenset({end}))
    core.add_request(request)
    seen = run(core)
    assert [token for delta in seen[0] for token in delta.token_ids] == answer[: answer.index(end) + 1]
    assert executor.num_steps == answer.index(end) + 2
    assert core.stats().num_held_blocks == 0
    assert core.step() == []


class Diary(FakeExecutor):
    """Writes down what the scheduler had counted when a step was launched."""

    def __init__(self, drafts: FakeDrafts) -> None:
        super().__init__(drafts=drafts)
        self.core: EngineCore | None = None
        self.counted: list[int] = []

    def launch(self, plan: StepPlan) -> None:
        assert self.core is not None
        self.counted.append(self.core.stats().num_steps)
        super().launch(plan)


def test_overlapped_steps_with_drafts_are_launched_before_the_last_one_is_reported() -> None:
    executor = Diary(FakeDrafts(0.7))
    core = executor.core = make_overlapped(executor, num_drafts=3)
    prompts = [[1, 2], [3, 4, 5], [6]]
    for request_id, prompt in enumerate(prompts):
        core.add_request(make_request(request_id, prompt))
    seen = run(core)
    assert executor.counted == [0, *range(executor.num_steps - 1)], "each but the first one step before its report"
    for request_id, prompt in enumerate(prompts):
        tokens = [token_id for delta in seen[request_id] for token_id in delta.token_ids]
        assert tokens == executor.model.answer(prompt, max_total_tokens=40)
    stats = core.stats()
    assert (stats.num_steps, stats.generated_tokens) == (executor.num_steps, 120 - 6)
    assert stats.num_accepted_tokens > 0


@pytest.mark.parametrize("params", [{"logprobs": 0}, {"repetition_penalty": 1.1}, {"bad_words_token_ids": ((3,),)}])
def test_overlapped_requests_that_need_the_last_token_wait_for_it(params: dict[str, object]) -> None:
    executor = FakeExecutor()
    core = make_overlapped(executor)
    core.add_request(make_request(0, [1, 2], max_total_tokens=6, **params))
    core.add_request(make_request(1, [1, 2, 3], max_total_tokens=6))
    launched = []
    while core.has_work:
        core.step()
        launched.append(executor.num_steps)
    assert launched == [2, 3, 4, 4], "the next is launched when this one is committed, before anything is sent"


@pytest.mark.parametrize("make", [make_core, make_overlapped])
def test_a_step_without_memory_preempts_and_goes_on(make) -> None:  # type: ignore[no-untyped-def]
    executor = FakeExecutor()
    executor.max_step_tokens = 5
    core = make(executor)
    prompts = [[1, 2, 3], [4] * 7, [5] * 6, [6, 7]]
    for request_id, prompt in enumerate(prompts):
        core.add_request(make_request(request_id, prompt, max_total_tokens=12))
    seen: dict[int, list[int]] = {}
    for _ in range(500):
        if not core.has_work:
            break
        for delta in core.step():
            seen.setdefault(delta.request_id, []).extend(delta.token_ids)
        core.scheduler.check_integrity()
    assert seen == {i: executor.model.answer(prompt, max_total_tokens=12) for i, prompt in enumerate(prompts)}
    assert core.stats().num_preemptions > 0


@pytest.mark.parametrize("make", [make_core, make_overlapped])
def test_a_request_that_finds_no_memory_alone_ends_alone(make) -> None:  # type: ignore[no-untyped-def]
    executor = FakeExecutor()
    core = make(executor)
    core.add_request(make_request(0, [1, 2], max_total_tokens=12))
    core.step()
    executor.max_step_tokens = 0
    deltas = [delta for _ in range(3) for delta in core.step()]
    assert deltas[-1].finish_reason is FinishReason.ERROR
    assert deltas[-1].error == "the device has no memory left for this request"
    executor.max_step_tokens = None
    core.add_request(make_request(1, [1, 2], max_total_tokens=12))
    tokens = [token for delta in run(core)[1] for token in delta.token_ids]
    assert tokens == executor.model.answer([1, 2], max_total_tokens=12)
    assert core.stats().num_held_blocks == 0


class PriceList(FixedDrafts):
    """Writes down what it is told that drafting took."""

    is_learning = True

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.draft_ms: list[float] = []

    def observe_step(self, shape: StepShape, forward_ms: float, draft_ms: float, num_committed: int) -> None:
        self.draft_ms.append(draft_ms)


@pytest.mark.parametrize(("num_drafts", "is_priced"), [(2, True), (0, False)])
def test_where_steps_overlap_all_that_passes_beside_the_forward_pass_is_the_price_of_drafts(
    num_drafts: int, is_priced: bool
) -> None:
    executor = FakeExecutor(drafts=FakeDrafts(0.7))
    policy = PriceList(num_drafts)
    scheduler = Scheduler(CacheManager(16, 4), policy, max_num_seqs=4, max_num_batched_tokens=16)
    ticks = iter(range(10**6))
    core = EngineCore(scheduler, executor, vocab_size=VOCAB, is_overlapped=True, clock=lambda: float(next(ticks)))
    for _ in range(2):  # between the two the engine rests, and nobody pays for that
        core.add_request(make_request(1, [1, 2, 3], max_total_tokens=12))
        run(core)
        next(ticks)

    within = [ms for ms in policy.draft_ms if ms]
    assert bool(within) == is_priced
    assert policy.draft_ms[0] == 0.0  # nothing came before
    assert all(ms >= 1000.0 for ms in within)  # of a clock whose every look is a second later
