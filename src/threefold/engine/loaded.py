"""A loaded engine: the model, its KV memory and its limits, on which cores with any speculation can be put.

Knows nothing about how it was loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from threefold.cache.manager import CacheManager
from threefold.config import SpeculationConfig
from threefold.cost import CostCurve
from threefold.draft.controller import Controller, DraftPolicy, FixedDrafts, NoDrafts
from threefold.draft.draft_behind import BehindDraftModel
from threefold.draft.draft_model import DraftModelDrafter
from threefold.draft.drafter import Drafter
from threefold.draft.ngram import NgramDrafter
from threefold.draft.suffix import SuffixDrafter
from threefold.draft.yields import PRIOR_CHANCE, even_chance
from threefold.engine.card import CardSteps, make_rows
from threefold.engine.core import EngineCore
from threefold.engine.describe import decided, describe
from threefold.engine.draft_pair import TRIAL_TOKENS, LoadedDraft, Trial, try_out
from threefold.engine.opened import Opened
from threefold.engine.outputs import EngineInfo
from threefold.engine.resolve import Reason
from threefold.engine.step_costs import StepCosts
from threefold.layers.attention import KVCache
from threefold.models.decoder import Decoder
from threefold.request import Request, SamplingParams
from threefold.runner.drafting import Drafting
from threefold.runner.executor import LocalExecutor
from threefold.runner.memory import MemoryPlan
from threefold.runner.proposing import MAX_GLIMPSED_ROWS
from threefold.runner.runner import ModelRunner
from threefold.runner.sight import Sight
from threefold.runner.worker import Worker
from threefold.sample.sampler import Sampler
from threefold.sample.verify import Acceptance, ExactAcceptance, SyntheticAcceptance
from threefold.schedule.scheduler import Scheduler
from threefold.schedule.slo import Slo

_MATCHERS: dict[str, Callable[[SpeculationConfig], Drafter]] = {
    "ngram": lambda asked: NgramDrafter(asked.prompt_lookup_min, asked.prompt_lookup_max),
    "suffix": lambda asked: SuffixDrafter(asked.prompt_lookup_min, asked.prompt_lookup_max),
}
"""Drafters that look up what was written before."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """All of an engine but what speculation decides: the model, its KV memory, its limits.

    Cores with different speculation can be put on it one after another, as bench/envelope.py does. They share the KV
    memory: only one may have requests at a time, and none may be used again after another has run.
    """

    opened: Opened
    decoder: Decoder
    kv: list[KVCache]
    plan: MemoryPlan
    step_costs: StepCosts
    card: CardSteps | None = None
    draft: LoadedDraft | None = None
    trial: Trial | None = None

    def cost_curve(self) -> tuple[CostCurve, str]:
        """What steps cost on this device, stored or measured now, and which of the two."""
        return self.step_costs.curve()

    def policy(self, speculation: SpeculationConfig) -> tuple[DraftPolicy, Reason]:
        """A fresh policy for a speculation config, and why it is this one."""
        if not speculation.is_enabled:
            return NoDrafts(), Reason("speculation", "off", "as asked")
        what = f"{'+'.join(speculation.methods)}, up to {speculation.num_speculative_tokens} tokens"
        if not speculation.is_adaptive:
            return FixedDrafts(speculation.num_speculative_tokens), Reason("speculation", what, "fixed, as asked")
        curve, source = self.cost_curve()
        prior_chance = PRIOR_CHANCE
        if self.trial is not None and speculation.uses_draft_model:
            rates = speculation.synthetic_acceptance_rates[: self.trial.max_draft]
            prior_chance = even_chance(sum(rates) if rates else self.trial.accepted, self.trial.max_draft)
            curve.observe_draft(1, self.trial.max_draft, self.trial.max_draft, self.trial.draft_ms)
        reason = Reason("speculation", what, f"as far as it pays; {source}")
        has_rounds = speculation.uses_draft_model
        sight_rows = 0 if has_rounds or self.card is None else MAX_GLIMPSED_ROWS
        controller = Controller(
            curve,
            speculation.num_speculative_tokens,
            has_rounds=has_rounds,
            sight_rows=sight_rows,
            prior_chance=prior_chance,
            is_behind=_is_behind(self, speculation),
        )
        return controller, reason

    def core(self, speculation: SpeculationConfig, policy: DraftPolicy, slo: Slo | None = None) -> EngineCore:
        """A fresh scheduler, cache, worker and drafters; speculation may draft no more than was planned for."""
        config = self.opened.config
        scheduler = Scheduler(
            CacheManager(self.plan.num_blocks, config.cache.block_size, config.cache.enable_prefix_caching),
            policy,
            max_num_seqs=self.plan.max_num_seqs,
            max_num_batched_tokens=self.opened.limits.max_num_batched_tokens,
            long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
            policy=config.scheduler.policy,
            seed=config.model.seed,
            lent_block_tokens=_lent_block_tokens(self, speculation),
            slo=slo,
            max_wanted_beside_prompts=self.card.max_wanted_beside_prompts if self.card is not None else None,
        )
        executor = LocalExecutor(_make_worker(self, speculation))
        vocab_size, is_gpu = self.opened.spec.vocab_size, self.opened.device.is_gpu
        return EngineCore(scheduler, executor, vocab_size=vocab_size, is_overlapped=is_gpu)

    def info(self, *reasons: Reason) -> EngineInfo:
        """What the engine is; `reasons` come after those of the limits and the memory."""
        return describe(self.opened, self.plan, [*decided(self.opened, self.plan), *_graphs(self), *reasons])


def _graphs(loaded: LoadedEngine) -> list[Reason]:
    if loaded.card is None:
        return []
    if loaded.opened.config.device.enforce_eager:
        return [Reason("graphs", "none", "as asked; kernels are launched one by one")]
    return [Reason("graphs", str(loaded.card.graphs), "captured now")]


def _make_worker(loaded: LoadedEngine, speculation: SpeculationConfig) -> Worker:
    opened, plan = loaded.opened, loaded.plan
    rows = make_rows(opened, plan)
    matchers, model = _matchers(speculation), _make_draft_model(loaded, speculation)
    return Worker(
        ModelRunner(loaded.decoder, loaded.kv),
        rows,
        Sampler(rows.sampling, _acceptance(speculation)),
        Drafting(matchers, opened.spec.vocab_size, model),
        opened.device,
        loaded.card.path if loaded.card is not None else None,
        sight=Sight() if loaded.card is not None else None,
        behind=model if isinstance(model, BehindDraftModel) and _is_behind(loaded, speculation) else None,
    )


def _acceptance(speculation: SpeculationConfig) -> Acceptance:
    if speculation.rejection_sample_method == "synthetic":
        return SyntheticAcceptance(speculation.synthetic_acceptance_rates)
    return ExactAcceptance()


def _is_behind(loaded: LoadedEngine, speculation: SpeculationConfig) -> bool:
    """Whether drafts are made behind steps: by a draft model that no other drafter is compared with."""
    has_behind = loaded.draft is not None and loaded.draft.behind is not None
    return has_behind and speculation.methods == ("draft_model",)


def _matchers(speculation: SpeculationConfig) -> list[Drafter]:
    if not speculation.is_enabled:
        return []
    return [_MATCHERS[method](speculation) for method in speculation.methods if method in _MATCHERS]


def _make_draft_model(loaded: LoadedEngine, speculation: SpeculationConfig) -> DraftModelDrafter | None:
    if loaded.draft is None or not speculation.uses_draft_model:
        return None
    return loaded.draft.drafter(
        max_num_seqs=loaded.plan.max_num_seqs,
        max_model_len=loaded.plan.max_model_len,
        vocab_size=loaded.opened.spec.vocab_size,
        max_tokens=loaded.opened.limits.max_num_batched_tokens,
        max_draft=speculation.max_draft_tokens,
        is_synthetic=speculation.rejection_sample_method == "synthetic",
    )


def _lent_block_tokens(loaded: LoadedEngine, speculation: SpeculationConfig) -> int:
    return loaded.draft.lent_block_tokens if loaded.draft is not None and speculation.uses_draft_model else 0


def try_draft(loaded: LoadedEngine) -> Trial | None:
    """Let the target write a text and the draft model follow it; None = the engine is too small for that."""
    speculation, opened_draft = loaded.opened.config.speculation, loaded.opened.draft
    draft, drafter = loaded.draft, _make_draft_model(loaded, speculation)
    if opened_draft is None or draft is None or drafter is None:
        return None
    prompt = list(opened_draft.trial_prompt)
    num_tokens = len(prompt) + TRIAL_TOKENS
    num_blocks = -(-(num_tokens + speculation.max_draft_tokens) // draft.lent_block_tokens)
    if num_tokens > loaded.plan.max_model_len or num_blocks > loaded.plan.num_blocks:
        return None
    off = replace(speculation, methods=())
    core = loaded.core(off, NoDrafts())
    params = SamplingParams(temperature=0.0, max_tokens=TRIAL_TOKENS)
    core.add_request(Request(0, prompt, params, max_total_tokens=num_tokens, end_token_ids=frozenset()))
    text = list(prompt)
    while core.has_work:
        text += [token_id for delta in core.step() for token_id in delta.token_ids]
    with torch.inference_mode():
        return try_out(drafter, text, len(prompt), speculation.max_draft_tokens, num_blocks)


def trial_reasons(loaded: LoadedEngine) -> list[Reason]:
    """The verdict on a draft model, where its acceptance is real."""
    speculation = loaded.opened.config.speculation
    if loaded.trial is None or speculation.rejection_sample_method == "synthetic":
        return []
    return [loaded.trial.reason(loaded.cost_curve()[0])]
