"""From a config to an engine that stands. What is decided is printed with its reason.

    locate ─► open checkpoint ─► device ─► limits ─► weights ─► measured peak ─► memory plan ─► KV ─► cost curve ─► core

    opened.py                                        fit.py                                     loaded.py, card.py

Knows every room and does nothing in any of them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import msgspec
import psutil

from threefold.config import EngineConfig
from threefold.engine.ahead import bodies_compiled
from threefold.engine.card import card_steps, draft_on_card
from threefold.engine.describe import decided
from threefold.engine.draft_pair import OpenedDraft, share_memory
from threefold.engine.fit import StepFacts, measure_step_facts, memory_facts, memory_wishes
from threefold.engine.loaded import LoadedEngine, trial_reasons, try_draft
from threefold.engine.loop import BuiltEngine
from threefold.engine.loops_ahead import LoopsAhead
from threefold.engine.opened import Opened, open_engine, weights_bytes
from threefold.engine.outputs import EngineInfo
from threefold.engine.start_clock import StartClock
from threefold.engine.step_costs import StepCosts
from threefold.engine.targets import hold_targets
from threefold.layers.attention import KVCache
from threefold.models.decoder import Decoder
from threefold.parallel import single_group
from threefold.runner.calibrate import eager_step
from threefold.runner.kv_pool import allocate_pool
from threefold.runner.kv_scales import scale_kv
from threefold.runner.memory import MemoryPlan, check_weights_fit, plan_memory
from threefold.runner.path import BatchSteps
from threefold.sample.draw import warm_up
from threefold.text.tokenizer import Tokenizer


def build_from_plain(config: dict[str, Any]) -> BuiltEngine:
    """The engine for a config as plain data: what the engine process calls."""
    clock = StartClock(before_s=time.time() - psutil.Process().create_time())
    return build_engine(msgspec.convert(config, EngineConfig), clock)


def build_engine(config: EngineConfig, clock: StartClock | None = None) -> BuiltEngine:
    """Load the model and put the engine together.

    Args:
        config: what was asked.
        clock: counts the time; None = a fresh one.

    Raises:
        OperatorError: the model cannot be loaded, does not fit, or a setting cannot hold.
    """
    clock = clock or StartClock()
    loaded = load_engine(config, clock)
    with clock.part("step costs"):
        policy, reason = loaded.policy(config.speculation)
        slo, slo_reasons = hold_targets(loaded, policy)
    with clock.part("scheduler"):
        core = loaded.core(config.speculation, policy, slo)
    return BuiltEngine(core, loaded.info(reason, *trial_reasons(loaded), *slo_reasons, clock.reason()))


def load_engine(config: EngineConfig, clock: StartClock | None = None) -> LoadedEngine:
    """Everything that takes time and memory: weights, measured peak, KV.

    Args:
        config: what was asked.
        clock: counts the time; None = a fresh one.

    Raises:
        OperatorError: as build_engine.
    """
    clock = clock or StartClock()
    with clock.part("files and device"):
        opened = open_engine(config)
        free_bytes = opened.device.free_bytes()
        check_weights_fit(free_bytes, weights_bytes(opened))
    with LoopsAhead(_loops(opened)) as loops:
        loaded, draft = _stand(opened, free_bytes, clock)
        with clock.part("compiled loops"):
            loops.wait()
            if loaded.card is None:
                warm_up()
    if opened.draft is None or draft is None:
        return loaded
    with clock.part("draft model"):
        return _beside(loaded, opened.draft, draft)


def _stand(opened: Opened, free_bytes: int, clock: StartClock) -> tuple[LoadedEngine, Decoder | None]:
    """The engine without its draft model, and that model's weights."""
    with clock.part("kernels and weights" if opened.device.is_gpu else "weights"), bodies_compiled(opened):
        decoder = _load(opened)
        draft = opened.draft.load(opened.dtype, opened.device) if opened.draft is not None else None
    with clock.part("memory"):
        steps = measure_step_facts(opened, decoder)
        plan = plan_memory(memory_facts(opened, free_bytes, steps), memory_wishes(opened))
        kv = _allocate(opened, decoder, plan)
    with clock.part("graphs"):
        card = card_steps(opened, decoder, kv, plan, steps.max_prompt_tokens)
    run = eager_step(decoder, kv) if card is None else BatchSteps(card.path)
    return LoadedEngine(opened, decoder, kv, plan, StepCosts(opened, plan, run), card), draft


def _beside(loaded: LoadedEngine, opened: OpenedDraft, draft: Decoder) -> LoadedEngine:
    """The engine with its draft model, tried out."""
    target = loaded.opened
    shared = share_memory(opened, draft, loaded.kv)
    scale_kv(shared.kv.caches, opened.checkpoint, draft, target.dtype, target.device)
    if loaded.card is not None:
        shared = draft_on_card(target, shared, loaded.plan, loaded.card)
    loaded = replace(loaded, draft=shared)
    return replace(loaded, trial=try_draft(loaded))


def _loops(opened: Opened) -> list[str]:
    """Compiled loops that the engine needs."""
    speculation = opened.config.speculation
    drawing = [] if opened.device.is_gpu else ["draw"]
    return [*drawing, *(["outlook", "admit"] if speculation.is_enabled and speculation.is_adaptive else []), "small"]


def plan_only(config: EngineConfig) -> str:
    """What `build_engine` would choose and why, without loading a weight: the step's peak is left out of the memory."""
    opened = open_engine(config)
    plan = plan_memory(memory_facts(opened, opened.device.free_bytes(), StepFacts()), memory_wishes(opened))
    return "\n".join([str(reason) for reason in decided(opened, plan)])


def make_tokenizer(info: EngineInfo) -> Tokenizer:
    """The tokenizer of an engine."""
    return Tokenizer.from_facts(info.tokenizer)


def _allocate(opened: Opened, decoder: Decoder, plan: MemoryPlan) -> list[KVCache]:
    opened.device.release_unused()
    block_size, device = opened.config.cache.block_size, opened.device
    kv = allocate_pool(opened.spec, plan.num_blocks, block_size, opened.kv_dtype, device.torch_device)
    scale_kv(kv, opened.checkpoint, decoder, opened.dtype, device)
    return kv


def _load(opened: Opened) -> Decoder:
    decoder = Decoder(opened.spec, opened.dtype, opened.device.torch_device, single_group())
    decoder.load(opened.checkpoint.tensors(opened.dtype, opened.device.torch_device))
    return decoder
