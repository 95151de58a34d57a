"""The same load on an engine in this process: no HTTP, no second process, the text edge included. Same result keys."""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

from threefold.bench.load_options import LoadOptions
from threefold.bench.measure import goodput, measure, parse_goodput
from threefold.bench.outcome import Outcome
from threefold.bench.prompt import WORDS, Prompt
from threefold.bench.request_form import RequestForm
from threefold.bench.scrape import Counters, difference
from threefold.bench.serve import describe_load
from threefold.bench.steady import closed_window, steady_figures
from threefold.bench.workload import Workload
from threefold.config import EngineConfig
from threefold.engine.answer import Answer
from threefold.engine.build import build_engine, make_tokenizer
from threefold.engine.core import EngineCore
from threefold.engine.outputs import EngineInfo
from threefold.errors import CallerError, ConfigError
from threefold.metrics import EngineStats
from threefold.request import Request, SamplingParams
from threefold.step import TokenDelta
from threefold.text.prepare import ModelLimits, prepare
from threefold.text.template_worker import MAX_RENDERED_BYTES, Template
from threefold.text.tokenizer import Tokenizer


def bench_offline(workload: Workload, load: LoadOptions, config: EngineConfig) -> dict[str, Any]:
    """Build the engine, answer the workload, return the figures; Ctrl-C ends the load and keeps what was measured.

    Raises:
        OperatorError: the engine cannot be built, or a limit is malformed.
    """
    limits = parse_goodput(load.goodput)
    core, info = build_engine(config)
    try:
        return _bench(core, info, workload, load, limits)
    finally:
        core.close()


def _bench(
    core: EngineCore, info: EngineInfo, workload: Workload, load: LoadOptions, limits: dict[str, float]
) -> dict[str, Any]:
    concurrency = load.concurrency or len(workload.prompts)
    tokenizer = make_tokenizer(info)
    if load.num_warmups:
        warmups = tuple(Prompt(f"Warm-up number {index}: say something.") for index in range(load.num_warmups))
        OfflineLoad(core, info, load, tokenizer).run(replace(workload, prompts=warmups), concurrency)
    let_stand()
    before = counters_of(core.stats())
    run = OfflineLoad(core, info, load, tokenizer)
    run.run(workload, concurrency)
    spans = [(outcome.start_s, outcome.end_s) for outcome in run.outcomes]
    return {
        "endpoint_type": "offline",
        "backend": "threefold",
        "model_id": info.model,
        "notes": list(info.notes),
        **describe_load(workload, load),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": concurrency,
        **measure(run.outcomes, run.duration_s),
        **steady_figures(run.outcomes, closed_window(spans, concurrency)),
        **(goodput(run.outcomes, run.duration_s, limits) if limits else {}),
        "num_interrupted": len(run.running),
        "remarks": list(workload.remarks),
        **difference(before, counters_of(core.stats())),
    }


def let_stand() -> None:
    """Leave what stands out of garbage collections, as a server's engine does.

    Else one that looks through all of torch falls into the load. Only where no engine is loaded after this one: what is
    frozen is not freed.
    """
    gc.collect()
    gc.freeze()


def counters_of(stats: EngineStats) -> Counters:
    """The engine's counters under the names that a server exposes them by."""
    return {
        "vllm:num_preemptions": stats.num_preemptions,
        "vllm:prefix_cache_queries": stats.prefix_queries,
        "vllm:prefix_cache_hits": stats.prefix_hits,
        "vllm:spec_decode_num_drafts": stats.num_drafts,
        "vllm:spec_decode_num_draft_tokens": stats.num_draft_tokens,
        "vllm:spec_decode_num_accepted_tokens": stats.num_accepted_tokens,
        **{
            f"vllm:spec_decode_num_accepted_tokens_per_pos@{position}": count
            for position, count in enumerate(stats.accepted_per_position)
        },
    }


class _Running(NamedTuple):
    outcome: Outcome
    answer: Answer | None
    token_ids: list[int]


class OfflineLoad:
    """Prompts answered by an engine in this thread, by users who each send their next one when their answer is over.

    Attributes:
        outcomes: finished requests.
        running: those in flight, by request id; not empty after `run` only when Ctrl-C ended it.
        waiting: prompts still to be sent: where they stand in the workload, and their tokens.
        token_ids: each request's answer, by the place of its prompt in the order in which they were queued.
        duration_s: of `run`, from the first request to the end of the last.

    Args:
        has_text: write answers out as text; a server does that in another process than the engine's.
    """

    def __init__(
        self, core: EngineCore, info: EngineInfo, load: LoadOptions, tokenizer: Tokenizer, *, has_text: bool = True
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.running: dict[int, _Running] = {}
        self.waiting: deque[tuple[int, Prompt, list[int]]] = deque()
        self.token_ids: list[list[int]] = []
        self.duration_s = 0.0
        self._core = core
        self._load = load
        self._limits = ModelLimits(info.max_model_len, info.vocab_size, frozenset(info.eos_token_ids))
        self._tokenizer = tokenizer
        self._has_text = has_text
        self._asked: dict[int, SamplingParams] = {}  # by max_tokens
        source = tokenizer.chat_template
        self._template = Template(source, tokenizer.special_tokens) if source is not None else None
        per_word = len(tokenizer.encode(" ".join(WORDS), add_special_tokens=False)) / len(WORDS)
        self._form = RequestForm("completions" if source is None else "chat", tokens_per_word=per_word)
        # Request ids are unique for the engine's life: warm-ups and the measured load must not share any.
        self._next_id = time.monotonic_ns()

    def run(self, workload: Workload, concurrency: int) -> None:
        """Answer every prompt, at most `concurrency` at once."""
        self.queue(workload)
        began = time.perf_counter()
        try:
            while self.waiting or self.running:
                self.step(concurrency)
        except KeyboardInterrupt:
            self._core.abort(list(self.running))
        self.duration_s = time.perf_counter() - began

    def queue(self, workload: Workload) -> None:
        """Make prompts ready to be sent."""
        for prompt in workload.prompts:
            self.waiting.append((len(self.token_ids), prompt, self._encode(prompt)))
            self.token_ids.append([])

    def step(self, num_users: int) -> None:
        """Send prompts until so many users wait for an answer, then run one step and take in what it brought."""
        while self.waiting and len(self.running) < num_users:
            self._send(*self.waiting.popleft())
        deltas = self._core.step()
        now = time.perf_counter()
        for delta in deltas:
            self._take(delta, now)

    def leave(self, num_users: int) -> None:
        """All but num_users go away without waiting for their answers; the latest who came go first."""
        gone = list(self.running)[num_users:]
        self._core.abort(gone)
        for request_id in gone:
            del self.running[request_id]

    def _encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, in the model's chat form when it has one."""
        content = self._form.content(prompt)
        if "messages" not in content:
            return self._tokenizer.encode(content["prompt"])
        if self._template is None:
            raise ConfigError("the data set brings messages, and the model has no chat template to render them")
        chat = {"messages": content["messages"], "add_generation_prompt": True}
        return self._tokenizer.encode(self._template.render(chat, {}, MAX_RENDERED_BYTES), add_special_tokens=False)

    def _send(self, place: int, prompt: Prompt, token_ids: list[int]) -> None:
        params = self._params(prompt.max_tokens or self._load.output_len or self._load.max_tokens)
        seed = self._load.shuffle_seed + place
        outcome = Outcome(time.perf_counter(), prompt_tokens=len(token_ids), is_counted=True, category=prompt.category)
        self._next_id += 1
        try:
            self._core.add_request(self._request(self._next_id, token_ids, params, seed))
        except CallerError as error:  # a prompt that does not fit fails alone, as it would over HTTP
            outcome.error, outcome.end_s = str(error), time.perf_counter()
            self.outcomes.append(outcome)
            return
        answer = Answer(0, self._tokenizer, params) if self._has_text else None
        self.running[self._next_id] = _Running(outcome, answer, self.token_ids[place])

    def _params(self, max_tokens: int) -> SamplingParams:
        """What is asked with every prompt, but for the seed; made once, for it is checked and the engine waits."""
        params = self._asked.get(max_tokens)
        if params is None:
            params = self._asked[max_tokens] = SamplingParams(
                max_tokens=max_tokens, temperature=self._load.temperature, ignore_eos=self._load.ignore_eos
            )
        return params

    def _request(self, request_id: int, token_ids: list[int], params: SamplingParams, seed: int) -> Request:
        ready = prepare(token_ids, params, self._limits, self._tokenizer, lambda: seed)
        return Request(
            request_id,
            token_ids,
            replace(ready.params, seed=seed),
            max_total_tokens=ready.max_total_tokens,
            end_token_ids=ready.end_token_ids,
            arrival_s=time.monotonic(),
        )

    def _take(self, delta: TokenDelta, now: float) -> None:
        outcome, answer, token_ids = self.running[delta.request_id]
        new_ids = delta.token_ids
        if new_ids:  # a hot loop, in which the engine waits
            token_ids += new_ids
            outcome.chunk_times_s.append(now)
        if answer is not None:
            answer.push_delta(delta)
        if delta.num_cached_tokens:  # the first says it
            outcome.cached_tokens = delta.num_cached_tokens
        if delta.finish_reason is None:
            return
        outcome.output_tokens = len(token_ids)
        outcome.end_s = now
        outcome.finish_reason = delta.finish_reason.value
        outcome.error = delta.error or ("" if outcome.chunk_times_s else "the answer holds no output")
        del self.running[delta.request_id]
        self.outcomes.append(outcome)
