"""From a config to an engine that stands: the one file that constructs. What is decided is printed with its reason.

    locate ─► open checkpoint ─► device ─► limits ─► weights ─► measured peak ─► memory plan ─► KV ─► cost curve ─► core

Knows every room and does nothing in any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from threefold import __version__
from threefold.cache.manager import CacheManager
from threefold.config import EngineConfig, SpeculationConfig
from threefold.cost import CostCurve
from threefold.draft.controller import Controller, DraftPolicy, FixedDrafts, NoDrafts
from threefold.draft.draft_model import DraftModelDrafter
from threefold.draft.drafter import Drafter
from threefold.draft.ngram import NgramDrafter
from threefold.draft.suffix import SuffixDrafter
from threefold.engine.core import EngineCore
from threefold.engine.curve_store import CurveStore
from threefold.engine.draft_pair import (
    TRIAL_TOKENS,
    LoadedDraft,
    OpenedDraft,
    Trial,
    open_draft,
    share_memory,
    trial_prompt,
    try_out,
)
from threefold.engine.loop import BuiltEngine
from threefold.engine.outputs import EngineInfo
from threefold.engine.resolve import Facts, Limits, Reason, resolve_limits
from threefold.errors import ConfigError
from threefold.kernels.linear import preferred_cpu_dtype
from threefold.layers.attention import KVCache
from threefold.models.checkpoint import DTYPES, Checkpoint, open_checkpoint, read_generation_defaults
from threefold.models.decoder import Decoder
from threefold.models.locate import locate_model
from threefold.models.spec import ModelSpec
from threefold.parallel import single_group
from threefold.request import Request, SamplingParams
from threefold.runner.calibrate import CalibrationLimits, eager_step, measure_steps
from threefold.runner.device import Device, num_devices, open_device
from threefold.runner.drafting import Drafting
from threefold.runner.executor import LocalExecutor
from threefold.runner.graphs import CudaCapture, GraphLimits, GraphReport, expected_bytes
from threefold.runner.kv_pool import allocate_pool, block_bytes
from threefold.runner.memory import MemoryFacts, MemoryPlan, MemoryWishes, check_weights_fit, plan_memory
from threefold.runner.path import BatchSteps, StepPath, card_path
from threefold.runner.peak import measure_forward_peak, measure_position_bytes
from threefold.runner.rounds import GraphRounds
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.runner.worker import Worker
from threefold.sample.draw import warm_up
from threefold.sample.sampler import Sampler
from threefold.sample.verify import Acceptance, ExactAcceptance, SyntheticAcceptance
from threefold.schedule.scheduler import Scheduler
from threefold.text.tokenizer import Tokenizer

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
TRIAL_BLOCKS_TOKENS = 2048
"""KV for the trial pass that measures the peak."""
_MATCHERS: dict[str, Callable[[SpeculationConfig], Drafter]] = {
    "ngram": lambda asked: NgramDrafter(asked.prompt_lookup_min, asked.prompt_lookup_max),
    "suffix": lambda asked: SuffixDrafter(asked.prompt_lookup_min, asked.prompt_lookup_max),
}
"""Drafters that look up what was written before."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is known before any weight is read."""

    config: EngineConfig
    checkpoint: Checkpoint
    device: Device
    limits: Limits
    draft: OpenedDraft | None

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.limits.dtype]

    @property
    def model_name(self) -> str:
        return self.config.model.model or DEFAULT_MODEL_NAME


@dataclass(frozen=True, slots=True)
class CardSteps:
    """How steps run on a card; None of it on a CPU."""

    path: StepPath
    graphs: GraphReport


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """All of an engine but what speculation decides: the model, its KV memory, its limits.

    Cores with different speculation can be put on it one after another, as bench/envelope.py does. They share the KV
    memory: only one may have requests at a time, and none may be used again after another has run.
    """

    opened: _Opened
    decoder: Decoder
    kv: list[KVCache]
    plan: MemoryPlan
    card: CardSteps | None = None
    draft: LoadedDraft | None = None
    trial: Trial | None = None

    def cost_curve(self) -> tuple[CostCurve, str]:
        """What steps cost on this device, stored or measured now, and which of the two."""
        return _cost_curve(self)

    def policy(self, speculation: SpeculationConfig) -> tuple[DraftPolicy, Reason]:
        """A fresh policy for a speculation config, and why it is this one."""
        if not speculation.is_enabled:
            return NoDrafts(), Reason("speculation", "off", "as asked")
        what = f"{'+'.join(speculation.methods)}, up to {speculation.num_speculative_tokens} tokens"
        if not speculation.is_adaptive:
            return FixedDrafts(speculation.num_speculative_tokens), Reason("speculation", what, "fixed, as asked")
        curve, source = _cost_curve(self)
        if self.trial is not None and "draft_model" in speculation.methods:
            for _ in range(3):  # one reading alone would hardly move a curve that knows nothing of drafting
                curve.observe_draft(1, self.trial.max_draft, self.trial.max_draft, self.trial.draft_ms)
        reason = Reason("speculation", what, f"as far as it pays; {source}")
        return Controller(curve, speculation.num_speculative_tokens), reason

    def core(self, speculation: SpeculationConfig, policy: DraftPolicy) -> EngineCore:
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
        )
        executor = LocalExecutor(_worker(self, speculation))
        vocab_size, is_gpu = self.opened.spec.vocab_size, self.opened.device.is_gpu
        return EngineCore(scheduler, executor, vocab_size=vocab_size, is_overlapped=is_gpu)

    def info(self, *reasons: Reason) -> EngineInfo:
        """What the engine is; `reasons` come after those of the limits and the memory."""
        graphs = [] if self.card is None else [Reason("graphs", str(self.card.graphs), "captured now")]
        return _info(self.opened, self.plan, [*_reasons(self.opened, self.plan), *graphs, *reasons])


def build_from_plain(config: dict[str, Any]) -> BuiltEngine:
    """The engine for a config as plain data: what the engine process calls."""
    return build_engine(msgspec.convert(config, EngineConfig))


def build_engine(config: EngineConfig) -> BuiltEngine:
    """Load the model and put the engine together.

    Raises:
        OperatorError: the model cannot be loaded, does not fit, or a setting cannot hold.
    """
    loaded = load_engine(config)
    policy, reason = loaded.policy(config.speculation)
    return BuiltEngine(loaded.core(config.speculation, policy), loaded.info(reason, *_trial_reasons(loaded)))


def load_engine(config: EngineConfig) -> LoadedEngine:
    """Everything that takes time and memory: weights, measured peak, KV.

    Raises:
        OperatorError: as build_engine.
    """
    opened = _open(config)
    free_bytes = opened.device.free_bytes()
    check_weights_fit(free_bytes, _num_parameters(opened) * opened.dtype.itemsize)
    decoder = _load(opened)
    draft = opened.draft.load(opened.dtype, opened.device) if opened.draft is not None else None
    facts = _memory_facts(opened, free_bytes, *_step_peak(opened, decoder))
    plan = plan_memory(facts, _memory_wishes(opened))
    device = opened.device.torch_device
    opened.device.release_unused()
    kv = allocate_pool(opened.spec, plan.num_blocks, config.cache.block_size, opened.dtype, device)
    if not opened.device.is_gpu:
        warm_up()
    loaded = LoadedEngine(opened, decoder, kv, plan, _card_steps(opened, decoder, kv, plan))
    if opened.draft is None or draft is None:
        return loaded
    shared = share_memory(opened.draft, draft, kv)
    if opened.device.is_gpu:
        shared = _on_card(opened, shared, plan)
    loaded = replace(loaded, draft=shared)
    return replace(loaded, trial=_try_draft(loaded))


def plan_only(config: EngineConfig) -> str:
    """What `build_engine` would choose and why, without loading a weight: the step's peak is left out of the memory."""
    opened = _open(config)
    plan = plan_memory(_memory_facts(opened, opened.device.free_bytes(), peak_bytes=0), _memory_wishes(opened))
    return "\n".join([str(reason) for reason in _reasons(opened, plan)])


def make_tokenizer(info: EngineInfo) -> Tokenizer:
    """The tokenizer of an engine."""
    return Tokenizer.from_facts(info.tokenizer)


def _open(config: EngineConfig) -> _Opened:
    _refuse_what_is_not_built(config)
    checkpoint = open_checkpoint(
        locate_model(config.model.model, config.model.revision), config.model.load_format, config.model.seed
    )
    device = open_device(config.device.device, config.device.num_threads)
    facts = Facts(
        max_positions=checkpoint.spec.max_positions,
        checkpoint_dtype=checkpoint.spec.dtype,
        is_gpu=device.is_gpu,
        num_devices=num_devices(device),
        preferred_cpu_dtype=_cpu_dtype(config, device),
    )
    draft = open_draft(config, checkpoint, config.model.model or DEFAULT_MODEL_NAME)
    return _Opened(config, checkpoint, device, resolve_limits(config, facts), draft)


def _refuse_what_is_not_built(config: EngineConfig) -> None:
    if config.model.quantization is not None:
        raise ConfigError(f"--quantization {config.model.quantization} is not built in Threefold yet; leave it out")
    if config.cache.kv_cache_dtype != "auto":
        raise ConfigError(f"--kv-cache-dtype {config.cache.kv_cache_dtype} is not built in Threefold yet; use auto")


def _cpu_dtype(config: EngineConfig, device: Device) -> str:
    if device.is_gpu or config.model.dtype != "auto":
        return "float32"
    return str(preferred_cpu_dtype()).removeprefix("torch.")


def _load(opened: _Opened) -> Decoder:
    decoder = Decoder(opened.spec, opened.dtype, opened.device.torch_device, single_group())
    decoder.load(opened.checkpoint.tensors(opened.dtype, opened.device.torch_device))
    return decoder


def _memory_facts(opened: _Opened, free_bytes: int, peak_bytes: int, position_bytes: int | None = None) -> MemoryFacts:
    """Figures for the memory plan; free_bytes as it was before the weights were loaded."""
    block_size = opened.config.cache.block_size
    return MemoryFacts(
        is_gpu=opened.device.is_gpu,
        total_bytes=opened.device.total_bytes(),
        free_bytes=free_bytes,
        weights_bytes=_weights_bytes(opened, free_bytes),
        peak_bytes=peak_bytes,
        block_bytes=block_bytes(opened.spec, block_size, opened.dtype),
        block_size=block_size,
        vocab_size=opened.spec.vocab_size,
        position_bytes=position_bytes,
        graphs_bytes=_graphs_bytes(opened, peak_bytes) if opened.device.is_gpu else 0,
    )


def _graph_limits(opened: _Opened, max_num_seqs: int, max_model_len: int) -> GraphLimits:
    max_draft = opened.config.speculation.max_draft_tokens
    return GraphLimits(max_num_seqs, max_draft, max_model_len, opened.spec.vocab_size)


def _graphs_bytes(opened: _Opened, peak_bytes: int) -> int:
    limits = opened.limits
    token_bytes = peak_bytes // limits.max_num_batched_tokens
    graphs = _graph_limits(opened, limits.max_num_seqs, limits.max_model_len)
    num_bytes = expected_bytes(graphs, token_bytes)
    if opened.draft is None:
        return num_bytes
    # Its passes hold less than the target's for each token, by an unknown share.
    return num_bytes + expected_bytes(replace(graphs, vocab_size=opened.draft.checkpoint.spec.vocab_size), token_bytes)


def _card_steps(opened: _Opened, decoder: Decoder, kv: list[KVCache], plan: MemoryPlan) -> CardSteps | None:
    if not opened.device.is_gpu:
        return None
    device = opened.device.torch_device
    limits = _card_limits(opened, decoder, plan)
    return CardSteps(
        *card_path(
            ModelRunner(decoder, kv),
            limits,
            max_tokens=opened.limits.max_num_batched_tokens,
            max_blocks=_rows(opened, plan).block_tables.shape[1],
            device=device,
            capture=CudaCapture(device),
        )
    )


def _on_card(opened: _Opened, draft: LoadedDraft, plan: MemoryPlan) -> LoadedDraft:
    """The draft model with graphs of its own."""
    steps = _card_steps(opened, draft.decoder, draft.kv.caches, plan)
    assert steps is not None, "a card has graphs"
    rounds = GraphRounds(
        ModelRunner(draft.decoder, draft.kv.caches),
        steps.path.device_rows,
        _card_limits(opened, draft.decoder, plan),
        block_size=draft.block_size,
        max_rounds=opened.config.speculation.max_draft_tokens,
    )
    rounds.capture(CudaCapture(opened.device.torch_device))
    return replace(draft, forward=steps.path.forward, rounds=rounds)


def _card_limits(opened: _Opened, decoder: Decoder, plan: MemoryPlan) -> GraphLimits:
    return replace(_graph_limits(opened, plan.max_num_seqs, plan.max_model_len), vocab_size=decoder.spec.vocab_size)


def _rows(opened: _Opened, plan: MemoryPlan) -> Rows:
    max_draft = opened.config.speculation.max_draft_tokens
    return Rows(plan.max_num_seqs, plan.max_model_len, opened.config.cache.block_size, max_draft)


def _weights_bytes(opened: _Opened, free_bytes: int) -> int:
    """On a card what is gone by now, once it is more: tables, modules and workspaces beside the weights."""
    weights_bytes = _num_parameters(opened) * opened.dtype.itemsize
    return max(weights_bytes, free_bytes - opened.device.free_bytes()) if opened.device.is_gpu else weights_bytes


def _num_parameters(opened: _Opened) -> int:
    draft = opened.draft.checkpoint.spec.num_parameters if opened.draft is not None else 0
    return opened.spec.num_parameters + draft


def _step_peak(opened: _Opened, decoder: Decoder) -> tuple[int, int | None]:
    """Bytes of the largest forward pass, and on a card of one position's way to a token."""
    block_size = opened.config.cache.block_size
    num_blocks = -(-TRIAL_BLOCKS_TOKENS // block_size)
    kv = allocate_pool(opened.spec, num_blocks, block_size, opened.dtype, opened.device.torch_device)
    limits = _calibration_limits(opened, num_blocks)
    forward_bytes = measure_forward_peak(decoder, kv, opened.device, limits)
    return forward_bytes, measure_position_bytes(decoder, kv, opened.device, limits) if opened.device.is_gpu else None


def _memory_wishes(opened: _Opened) -> MemoryWishes:
    cache, limits, speculation = opened.config.cache, opened.limits, opened.config.speculation
    return MemoryWishes(
        max_model_len=limits.max_model_len,
        is_len_explicit=limits.is_len_explicit,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_draft=speculation.max_draft_tokens,
        gpu_memory_utilization=cache.gpu_memory_utilization,
        kv_cache_memory_bytes=cache.kv_cache_memory_bytes,
        num_blocks=cache.num_blocks,
    )


def _calibration_limits(opened: _Opened, num_blocks: int) -> CalibrationLimits:
    return CalibrationLimits(
        num_blocks=num_blocks,
        block_size=opened.config.cache.block_size,
        max_num_seqs=opened.limits.max_num_seqs,
        max_num_batched_tokens=opened.limits.max_num_batched_tokens,
        max_model_len=opened.limits.max_model_len,
    )


def _cost_curve(loaded: LoadedEngine) -> tuple[CostCurve, str]:
    """The stored curve of this model on this device, else a fresh one by measurement; and where it came from."""
    opened, plan = loaded.opened, loaded.plan
    store = CurveStore(
        {
            "model": repr(opened.spec),
            "storage": opened.checkpoint.storage,
            "dtype": opened.limits.dtype,
            "device": opened.device.name,
            "max_num_seqs": plan.max_num_seqs,
            "max_num_batched_tokens": opened.limits.max_num_batched_tokens,
            "torch": torch.__version__,
            "threefold": __version__,
            **({} if loaded.card is None else {"graphs": opened.config.speculation.max_draft_tokens}),
        }
    )
    curve = store.load()
    if curve is not None:
        return curve, f"step costs measured earlier ({store.path.name})"
    limits = replace(
        _calibration_limits(opened, plan.num_blocks), max_num_seqs=plan.max_num_seqs, max_model_len=plan.max_model_len
    )
    card = loaded.card
    run = eager_step(loaded.decoder, loaded.kv) if card is None else BatchSteps(card.path)
    curve = CostCurve.from_measurements(measure_steps(run, opened.device, limits))
    store.save(curve)
    return curve, "step costs measured now"


def _worker(loaded: LoadedEngine, speculation: SpeculationConfig) -> Worker:
    opened, plan = loaded.opened, loaded.plan
    rows = _rows(opened, plan)
    return Worker(
        ModelRunner(loaded.decoder, loaded.kv),
        rows,
        Sampler(rows.sampling, _acceptance(speculation)),
        _drafting(loaded, speculation),
        opened.device,
        loaded.card.path if loaded.card is not None else None,
    )


def _acceptance(speculation: SpeculationConfig) -> Acceptance:
    if speculation.rejection_sample_method == "synthetic":
        return SyntheticAcceptance(speculation.synthetic_acceptance_rates)
    return ExactAcceptance()


def _drafting(loaded: LoadedEngine, speculation: SpeculationConfig) -> Drafting:
    made: list[Drafter] = []
    if speculation.is_enabled:
        made = [_MATCHERS[method](speculation) for method in speculation.methods if method in _MATCHERS]
    return Drafting(made, loaded.opened.spec.vocab_size, _draft_model(loaded, speculation))


def _draft_model(loaded: LoadedEngine, speculation: SpeculationConfig) -> DraftModelDrafter | None:
    if loaded.draft is None or not speculation.is_enabled or "draft_model" not in speculation.methods:
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
    is_used = loaded.draft is not None and speculation.is_enabled and "draft_model" in speculation.methods
    return loaded.draft.lent_block_tokens if is_used and loaded.draft is not None else 0


def _try_draft(loaded: LoadedEngine) -> Trial | None:
    """Let the target write a text and the draft model follow it; None = the engine is too small for that."""
    speculation = loaded.opened.config.speculation
    prompt = trial_prompt(loaded.opened.checkpoint)
    num_tokens = len(prompt) + TRIAL_TOKENS
    draft, drafter = loaded.draft, _draft_model(loaded, speculation)
    if draft is None or drafter is None:
        return None
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


def _trial_reasons(loaded: LoadedEngine) -> list[Reason]:
    speculation = loaded.opened.config.speculation
    if loaded.trial is None or speculation.rejection_sample_method == "synthetic":
        return []
    return [loaded.trial.reason(_cost_curve(loaded)[0])]


def _reasons(opened: _Opened, plan: MemoryPlan) -> list[Reason]:
    """What was decided; what the memory plan changed stands once, with the plan's reason."""
    spec, checkpoint = opened.spec, opened.checkpoint
    size = f"{spec.num_parameters / 1e6:,.0f} M parameters"
    stepped = {line.name: Reason(*line) for line in plan.lines}
    reasons = [
        Reason("model", opened.model_name, f"{spec.architecture}, {size}, {checkpoint.storage}"),
        Reason("device", opened.device.name, "found" if opened.config.device.device == "auto" else "as asked"),
        *(stepped.pop(reason.name, reason) for reason in opened.limits.reasons),
        *stepped.values(),
    ]
    prefix = "on" if opened.config.cache.enable_prefix_caching else "off"
    return [*reasons, Reason("prefix caching", prefix, "default" if prefix == "on" else "as asked")]


def _info(opened: _Opened, plan: MemoryPlan, reasons: list[Reason]) -> EngineInfo:
    model = opened.config.model
    facts = opened.checkpoint.tokenizer_facts
    tokenizer: dict[str, Any] = {"folder": str(facts)} if isinstance(facts, Path) else {"gguf": dict(facts)}
    if model.tokenizer is not None:
        tokenizer = {"folder": model.tokenizer}
    ends = opened.spec.eos_token_ids or Tokenizer.from_facts(tokenizer).eos_token_ids
    return EngineInfo(
        model=opened.model_name,
        max_model_len=plan.max_model_len,
        vocab_size=opened.spec.vocab_size,
        served_model_names=model.served_model_names or (opened.model_name,),
        eos_token_ids=ends,
        num_blocks=plan.num_blocks,
        block_size=opened.config.cache.block_size,
        max_num_seqs=plan.max_num_seqs,
        max_num_queued_reqs=opened.limits.max_num_queued_reqs,
        seed=model.seed,
        default_sampling=_default_sampling(opened),
        notes=tuple(str(reason) for reason in reasons),
        tokenizer=tokenizer,
    )


def _default_sampling(opened: _Opened) -> dict[str, float]:
    asked = opened.config.model.generation_config
    if asked == "vllm":
        return {}
    if asked == "auto":
        return opened.checkpoint.generation_defaults
    return read_generation_defaults(Path(asked))
