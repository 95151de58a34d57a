"""Random lives of a scheduler: whatever happens, blocks are conserved and every answer is what the model must say."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from threefold.cache.manager import CacheManager
from threefold.cost import StepShape
from threefold.draft.controller import FixedDrafts, RowDraft
from threefold.engine.core import EngineCore
from threefold.request import FinishReason, Request, SamplingParams
from threefold.schedule.scheduler import Scheduler
from threefold.step import TokenDelta
from threefold.testing.audited_executor import AuditedExecutor
from threefold.testing.fake_executor import FakeDrafts, FakeExecutor
from threefold.testing.fake_model import FakeModel

END = 99
VOCAB = 100
STEM = [0, 1, 1, 0, 1, 0, 0, 1] * 3


class WilfulPolicy(FixedDrafts):
    """Verifies and proposes as many drafts as it feels like; keeps the books on who runs."""

    def __init__(self, k: int, seed: int) -> None:
        super().__init__(k)
        self._dice = random.Random(seed)
        self.running: set[int] = set()

    def start(self, request_id: int, limit: int) -> None:
        assert request_id not in self.running
        self.running.add(request_id)
        super().start(request_id, limit)

    def stop(self, request_id: int) -> None:
        self.running.remove(request_id)
        super().stop(request_id)

    def choose(self, rows: Sequence[RowDraft], shape: StepShape) -> list[int]:
        return [self._upto(most) for most in super().choose(rows, shape)]

    def appetites(self, request_ids: Sequence[int]) -> Mapping[int, int]:
        return {request_id: self._upto(most) for request_id, most in super().appetites(request_ids).items()}

    def _upto(self, most: int) -> int:
        return self._dice.choice([most, most, self._dice.randint(0, most)])

    def observe(self, request_id: int, drafter: str, num_drafted: int, num_accepted: int) -> None:
        assert request_id in self.running
        assert drafter == "fake"
        assert 0 <= num_accepted <= num_drafted <= self._limits[request_id]


class Ask(NamedTuple):
    """A request to come; a long one repeats its prompt up to what the cache can hold."""

    prompt: list[int]
    is_long: bool
    params: SamplingParams
    stops: frozenset[int]
    salt: str
    priority: int


def make_prompt(num_shared: int, tail: list[int]) -> list[int]:
    return STEM[:num_shared] + tail


def make_params(
    max_tokens: int, min_tokens: int, max_draft_tokens: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max(max_tokens, min_tokens),
        min_tokens=min_tokens,
        max_draft_tokens=max_draft_tokens,
        prompt_logprobs=prompt_logprobs,
    )


asks = st.builds(
    Ask,
    prompt=st.builds(make_prompt, st.integers(0, len(STEM)), st.lists(st.integers(0, 1), min_size=1, max_size=3)),
    is_long=st.integers(0, 9).map(lambda roll: roll == 9),
    params=st.builds(
        make_params,
        max_tokens=st.sampled_from([30, 40, 12, 1]),
        min_tokens=st.integers(0, 6),
        max_draft_tokens=st.sampled_from([None, None, 2, 0]),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
    ),
    stops=st.sampled_from([frozenset({END}), frozenset({END, 2}), frozenset()]),
    salt=st.sampled_from(["", "", "tenant"]),
    priority=st.integers(-1, 1),
)


class Life:
    """What the outside has seen of a request."""

    def __init__(self, request: Request, expected: list[int]) -> None:
        self.request = request
        self.prompt = list(request.token_ids)
        self.expected = expected
        self.tokens: list[int] = []
        self.deltas: list[TokenDelta] = []
        self.is_over = False


class SchedulingMachine(RuleBasedStateMachine):
    """Adds, aborts, breaks and steps in any order."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def build(self, seed: int) -> None:
        pick = random.Random(seed).choice  # spreads over the settings more evenly than hypothesis does
        num_blocks, block_size = pick([3, 6, 10, 16, 48]), pick([1, 2, 4, 8])
        max_num_seqs = pick([1, 3, 6, 6])
        budget = max_num_seqs + pick([0, 1, 8, 24])
        self.model = FakeModel(alphabet=range(4), end_token_id=END, ends_one_in=40)
        drafts = FakeDrafts(pick([0.0, 0.5, 0.8, 1.0]), is_ragged=pick([False, True]), seed=seed)
        self.fake = FakeExecutor(self.model, drafts=drafts)
        self.policy = WilfulPolicy(pick([0, 0, 1, 3, 6]), seed)
        self.cache = CacheManager(num_blocks, block_size, enable_prefix_caching=pick([True, True, False]))
        self.scheduler = Scheduler(
            self.cache,
            self.policy,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=pick([0, 1, 3, 8]),
            policy=pick(["fcfs", "priority"]),
            lent_block_tokens=pick([0, block_size, 2 * block_size]),
            clock=self.tick,
        )
        executor = AuditedExecutor(self.fake, num_blocks, block_size, budget)
        self.is_overlapped = pick([False, True])
        self.core = EngineCore(
            self.scheduler, executor, vocab_size=VOCAB, is_overlapped=self.is_overlapped, clock=self.tick
        )
        self.capacity = num_blocks * block_size
        self.now_s = 0.0
        self.lives: dict[int, Life] = {}

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    @rule(asks=st.lists(asks, min_size=1, max_size=6))
    def add(self, asks: list[Ask]) -> None:
        for ask in asks:
            prompt = ask.prompt * self.capacity if ask.is_long else ask.prompt
            prompt = prompt[: self.capacity - 1 - len(ask.prompt) % 3] or [0]
            limit = min(len(prompt) + ask.params.max_tokens, self.capacity)
            request = Request(
                len(self.lives),
                prompt,
                ask.params,
                max_total_tokens=limit,
                end_token_ids=ask.stops,
                arrival_s=self.tick(),
                priority=ask.priority,
                cache_salt=ask.salt,
            )
            expected = self.model.answer(
                prompt, max_total_tokens=limit, end_token_ids=ask.stops, min_tokens=ask.params.min_tokens
            )
            self.lives[request.request_id] = Life(request, expected)
            self.core.add_request(request)

    @rule(num_steps=st.sampled_from([12, 5, 1]))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.see(self.core.step())
            self.check_conservation()

    @precondition(lambda self: self.unfinished())
    @rule(choice=st.integers(0, 1000), kind=st.sampled_from(["abort", "abort during a step", "break"]))
    def disturb(self, choice: int, kind: str) -> None:
        unfinished = self.unfinished()
        life = unfinished[choice % len(unfinished)]
        request_id = life.request.request_id
        if kind == "abort" or (kind == "abort during a step" and self.is_overlapped):  # one is always in flight then
            self.core.abort([request_id, 10**6])
            life.is_over = True
        elif kind == "break":
            self.fake.row_faults[request_id] = "a fault"
        else:
            plan = self.scheduler.plan()
            assert plan is not None
            result = self.core.executor.run(plan)
            self.core.abort([request_id])
            assert life.request.block_ids == []
            life.is_over = True
            self.see(self.scheduler.commit(plan, result))

    @rule()
    def reset_prefix_cache(self) -> None:
        assert self.core.reset_prefix_cache()
        assert self.cache.num_cached_blocks == 0

    @invariant()
    def check_conservation(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        running = {life.request.request_id for life in self.lives.values() if life.request.block_ids}
        assert running == self.policy.running
        for life in self.lives.values():
            assert 0 <= life.request.num_computed <= life.request.num_tokens

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        most = sum(len(life.prompt) + len(life.expected) for life in self.lives.values())
        for _ in range(most * 8 + 1):
            if not self.core.has_work:
                break
            self.see(self.core.step())
            self.check_conservation()
        assert not self.core.has_work, "a request never ends"
        assert self.unfinished() == []
        assert self.core.step() == []
        stats = self.core.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_held_blocks) == (0, 0, 0)
        assert self.cache.num_free_blocks == self.cache.num_blocks
        assert stats.generated_tokens == sum(len(life.tokens) for life in self.lives.values())

    def see(self, deltas: list[TokenDelta]) -> None:
        for delta in deltas:
            life = self.lives[delta.request_id]
            assert not life.is_over
            assert delta.token_ids or delta.finish_reason
            self.check_first(life, delta)
            life.deltas.append(delta)
            life.tokens += delta.token_ids
            assert life.tokens == life.expected[: len(life.tokens)]
            assert life.request.token_ids == life.prompt + life.tokens
            if delta.finish_reason is not None:
                self.check_end(life, delta)

    def check_first(self, life: Life, delta: TokenDelta) -> None:
        is_first = not life.deltas
        assert (delta.queue_s is not None) == is_first
        if not is_first:
            assert delta.prompt_logprobs is None
        elif life.request.params.prompt_logprobs is not None:
            assert delta.num_cached_tokens == 0
            if delta.error is None:
                assert [entry.token_id for entry in delta.prompt_logprobs or ()] == life.prompt[1:]

    def check_end(self, life: Life, delta: TokenDelta) -> None:
        life.is_over = True
        if delta.finish_reason is FinishReason.ERROR:
            assert delta.error == "a fault"
            return
        assert life.tokens == life.expected
        is_stopped = life.tokens[-1] in life.request.end_token_ids and (
            len(life.tokens) > life.request.params.min_tokens
        )
        assert delta.finish_reason is (FinishReason.STOP if is_stopped else FinishReason.LENGTH)
        assert delta.stop_token_id == (life.tokens[-1] if is_stopped else None)

    def unfinished(self) -> list[Life]:
        return [life for life in self.lives.values() if not life.is_over]


TestScheduling = SchedulingMachine.TestCase
TestScheduling.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
