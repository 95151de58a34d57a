"""Speculation on texts that a model really wrote, with the times of a card, and no card: does the policy ever lose?

    python scripts/policy_on_texts.py spec_bench.jsonl --methods ngram,suffix --groups prose,coding+writing --rounds 3

The model answers every prompt once, on this machine. Then users ask for those answers on a virtual clock: scheduler,
policy and drafters are the engine's own, a draft passes where it is what the model wrote, and steps take what they took
SmolLM2-135M on one H200: the device by tokens, the host by rows, and with drafts or requests for them it holds the next
step up. What differs from a card is neither text nor policy.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from threefold.bench.load_options import LoadOptions
from threefold.bench.offline import OfflineLoad
from threefold.bench.step_kinds import kind_of
from threefold.bench.workload import Workload, load_workload
from threefold.cache.manager import CacheManager
from threefold.config import EngineConfig
from threefold.cost import CostCurve
from threefold.draft.controller import Controller
from threefold.draft.drafter import Drafter
from threefold.draft.ngram import NgramDrafter
from threefold.draft.policy import DraftPolicy, NoDrafts
from threefold.draft.suffix import SuffixDrafter
from threefold.engine.build import build_engine, make_tokenizer
from threefold.engine.core import EngineCore
from threefold.request import Request, SamplingParams
from threefold.schedule.drafting import shape_of
from threefold.schedule.scheduler import Scheduler
from threefold.step import NewRow, RowPlan, RowResult, StepPlan, StepResult

KNOTS = [
    (1, 0.73), (16, 0.95), (64, 1.13), (128, 1.22), (192, 1.3), (256, 1.4), (512, 1.72), (768, 1.9), (1100, 2.26),
    (2048, 4.2), (4096, 9.0), (8192, 18.0),
]  # fmt: skip
"""Tokens of a step, and what it takes the device, ms."""
LAUNCH_MS, LAUNCH_ROW_MS, SETUP_MS = 0.2, 0.0003, 0.1
"""The host's part before a step, for each row, and for each that is set up …"""
COMMIT_MS, COMMIT_ROW_MS = 0.25, 0.0008
"""… after it …"""
HELD_UP_MS, HELD_UP_ROW_MS, DRAFT_MS = 0.05, 0.004, 0.002
"""… and where drafts are asked for or verified, while the device waits: the last for each of these."""
MAX_DRAFT, SIGHT_ROWS, MATCHES = 8, 16, (2, 5)
DRAFTERS: dict[str, type[NgramDrafter | SuffixDrafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}


class Text(NamedTuple):
    """A prompt, and what the model says to it."""

    prompt_ids: list[int]
    answer_ids: list[int]


class Card:
    """An executor that knows what the model would say."""

    def __init__(self, drafter: Drafter | None) -> None:
        self.now_ms = self._free_ms = 0.0
        self.kinds: Counter[str] = Counter()
        self.answers: dict[int, list[int]] = {}  # by request id
        self._drafter = drafter
        self._said: dict[int, int] = {}  # tokens, of each row
        self._drafts: dict[int, list[int]] = {}
        self._curve = CostCurve(KNOTS)
        self._flights: deque[tuple[StepPlan, float, float]] = deque()

    def launch(self, plan: StepPlan) -> None:
        """The device takes its time, behind what it is busy with."""
        for request_id in plan.dropped:
            self._drop(request_id)
        for new in plan.new_rows:
            self._set_up(new)
        self.now_ms += LAUNCH_MS + LAUNCH_ROW_MS * len(plan.rows) + SETUP_MS * len(plan.new_rows)
        forward_ms = self._curve.forward_ms(shape_of(plan.columns)._replace(kv_tokens=0))
        self._free_ms = max(self._free_ms, self.now_ms) + forward_ms
        self._flights.append((plan, self._free_ms, forward_ms))

    def collect(self) -> StepResult:
        """What the oldest step came to."""
        plan, due_ms, forward_ms = self._flights.popleft()
        num_asked = sum(length > 0 for length in plan.columns.next_draft)
        self.now_ms = max(self.now_ms, due_ms) + COMMIT_MS + COMMIT_ROW_MS * len(plan.rows)
        if num_asked or plan.num_drafts:
            self.now_ms += HELD_UP_MS + HELD_UP_ROW_MS * len(plan.rows) + DRAFT_MS * (num_asked + plan.num_drafts)
        self.kinds[kind_of(plan)] += 1
        rows = [self._say(row) for row in plan.rows]
        offers = self._propose(plan)
        seen = self._look(plan) if not num_asked and self._flights and len(plan.rows) <= SIGHT_ROWS else {}
        found = [
            row._replace(survival=offers[planned.request_id], drafter="looked up")
            if planned.request_id in offers
            else row
            for planned, row in zip(plan.rows, rows, strict=True)
        ]
        return StepResult(found, forward_ms, glimpses=seen)

    def run(self, plan: StepPlan) -> StepResult:
        """Launch and collect."""
        self.launch(plan)
        return self.collect()

    def close(self) -> None:
        """There is nothing to free."""

    def _set_up(self, new: NewRow) -> None:
        self._said[new.request_id] = 0
        if self._drafter is not None:
            self._drafter.start(new.request_id, new.token_ids, "")

    def _drop(self, request_id: int) -> None:
        if self._said.pop(request_id, None) is not None and self._drafter is not None:
            self._drafter.stop(request_id)

    def _say(self, planned: RowPlan) -> RowResult:
        """The drafts that the model says, and one token more."""
        request_id = planned.request_id
        if not planned.wants_token or request_id not in self._said:
            return RowResult([])
        drafts = self._drafts.pop(request_id, [])[: planned.max_draft]
        begin = self._said[request_id]
        rest = self.answers[request_id][begin : begin + len(drafts) + 1]
        num_passed = 0
        while num_passed < min(len(drafts), len(rest) - 1) and drafts[num_passed] == rest[num_passed]:
            num_passed += 1
        token_ids = rest[: num_passed + 1]
        self._said[request_id] += len(token_ids)
        if self._drafter is not None:
            self._drafter.observe(request_id, token_ids)
        return RowResult(token_ids, planned.max_draft)

    def _propose(self, plan: StepPlan) -> dict[int, tuple[float, ...]]:
        wanted = {row.request_id: row.next_draft for row in plan.rows if row.next_draft and row.wants_token}
        if self._drafter is None or not wanted:
            return {}
        found = self._drafter.propose(wanted)
        self._drafts |= {request_id: draft.token_ids for request_id, draft in found.items()}
        return {request_id: draft.survival for request_id, draft in found.items()}

    def _look(self, plan: StepPlan) -> dict[int, float]:
        if self._drafter is None:
            return {}
        here = [row.request_id for row in plan.rows if row.wants_token]
        found = self._drafter.propose(dict.fromkeys(here, MAX_DRAFT))
        return {key: sum(found[key].survival[2:]) if key in found else 0.0 for key in here}


class Outcome(NamedTuple):
    """What a run came to."""

    tokens_per_ms: float
    kinds: Counter[str]
    num_drafts: int


def run(texts: list[Text], policy: DraftPolicy, drafter: Drafter | None, num_users: int) -> Outcome:
    """Who has an answer asks for the next."""
    card = Card(drafter)

    def clock() -> float:
        return card.now_ms / 1000

    scheduler = Scheduler(
        CacheManager(1 << 16, 16),
        policy,
        max_num_seqs=num_users,
        max_num_batched_tokens=8192,
        max_wanted_beside_prompts=num_users,
        clock=clock,
    )
    core = EngineCore(scheduler, card, vocab_size=1 << 20, is_overlapped=True, clock=clock)
    requests = _requests(texts, card)
    for _, request in zip(range(num_users), requests, strict=False):
        core.add_request(request)
    while core.has_work:
        for delta in core.step():
            if delta.finish_reason is not None and (request := next(requests, None)) is not None:
                core.add_request(request)
    num_tokens = sum(len(text.answer_ids) for text in texts)
    return Outcome(num_tokens / card.now_ms, card.kinds, core.stats().num_draft_tokens)


def _requests(texts: list[Text], card: Card) -> Iterator[Request]:
    for request_id, (prompt_ids, answer_ids) in enumerate(texts):
        card.answers[request_id] = answer_ids
        num_tokens = len(answer_ids)
        params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        total = len(prompt_ids) + num_tokens
        yield Request(request_id, prompt_ids, params, max_total_tokens=total, end_token_ids=frozenset())


class Writer:
    """Has the default model answer prompts, each once."""

    def __init__(self, max_tokens: int) -> None:
        plain = EngineConfig()
        self._core, self._info = build_engine(replace(plain, speculation=replace(plain.speculation, methods=())))
        self._tokenizer = make_tokenizer(self._info)
        self._options = LoadOptions(max_tokens=max_tokens)
        self._texts: dict[str, Text] = {}

    def texts(self, workload: Workload) -> list[Text]:
        """Of all prompts, in their order."""
        unknown = {prompt.text: prompt for prompt in workload.prompts if prompt.text not in self._texts}
        load = OfflineLoad(self._core, self._info, self._options, self._tokenizer, has_text=False)
        load.queue(replace(workload, prompts=tuple(unknown.values())))
        prompt_ids = [ids for _, _, ids in load.waiting]
        while load.waiting or load.running:
            load.step(self._info.max_num_seqs)
        self._texts |= zip(unknown, map(Text, prompt_ids, load.token_ids), strict=True)
        return [self._texts[prompt.text] for prompt in workload.prompts]


def main() -> None:
    """Print what the policy makes of each load, over off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--groups", default="prose")
    parser.add_argument("--methods", default="ngram,suffix")
    parser.add_argument("--users", type=int, default=256)
    parser.add_argument("--requests-per-user", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=256)
    asked = parser.parse_args()
    writer = Writer(asked.max_tokens)
    controllers = {
        method: Controller(CostCurve(KNOTS), MAX_DRAFT, has_rounds=False, sight_rows=SIGHT_ROWS)
        for method in asked.methods.split(",")
    }
    for group in asked.groups.split(","):
        workload = load_workload(
            asked.dataset, group=group.replace("+", ","), num_prompts=asked.users * asked.requests_per_user
        )
        texts = writer.texts(workload)
        off = run(texts, NoDrafts(), None, asked.users)
        print(f"{group}, {asked.users} users, off: {off.tokens_per_ms:.1f} tokens/ms, {off.kinds.total()} steps")
        for method, controller in controllers.items():  # which lives on, as in a server
            for _ in range(asked.rounds):
                found = run(texts, controller, DRAFTERS[method](*MATCHES), asked.users)
                ratio = found.tokens_per_ms / off.tokens_per_ms
                print(f"  {method}: {ratio:.3f} × off, {found.num_drafts} drafts verified, {dict(found.kinds)}")


if __name__ == "__main__":
    main()
