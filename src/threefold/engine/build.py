"""From a config to an engine that stands. What is decided is printed with its reason.

    locate ─► open checkpoint ─► device ─► limits ─► weights ─► measured peak ─► memory plan ─► KV ─► cost curve ─► core

    opened.py                                        fit.py                                     loaded.py, card.py

Knows every room and does nothing in any of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from threefold.config import EngineConfig
from threefold.engine.card import card_steps, draft_on_card
from threefold.engine.describe import decided
from threefold.engine.draft_pair import share_memory
from threefold.engine.fit import memory_facts, memory_wishes, step_peak
from threefold.engine.loaded import LoadedEngine, check_curve, trial_reasons, try_draft, warm_up_card
from threefold.engine.loop import BuiltEngine
from threefold.engine.opened import Opened, open_engine, weights_bytes
from threefold.engine.outputs import EngineInfo
from threefold.engine.targets import hold_targets
from threefold.models.decoder import Decoder
from threefold.parallel import single_group
from threefold.runner.kv_pool import allocate_pool
from threefold.runner.kv_scales import scale_kv
from threefold.runner.memory import check_weights_fit, plan_memory
from threefold.sample.draw import warm_up
from threefold.text.tokenizer import Tokenizer


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
    slo, slo_reasons = hold_targets(loaded, policy)
    core = loaded.core(config.speculation, policy, slo)
    return BuiltEngine(core, loaded.info(reason, *trial_reasons(loaded), *slo_reasons))


def load_engine(config: EngineConfig) -> LoadedEngine:
    """Everything that takes time and memory: weights, measured peak, KV.

    Raises:
        OperatorError: as build_engine.
    """
    opened = open_engine(config)
    free_bytes = opened.device.free_bytes()
    check_weights_fit(free_bytes, weights_bytes(opened))
    decoder = _load(opened)
    draft = opened.draft.load(opened.dtype, opened.device) if opened.draft is not None else None
    facts = memory_facts(opened, free_bytes, *step_peak(opened, decoder))
    plan = plan_memory(facts, memory_wishes(opened))
    device = opened.device.torch_device
    opened.device.release_unused()
    kv = allocate_pool(opened.spec, plan.num_blocks, config.cache.block_size, opened.kv_dtype, device)
    scale_kv(kv, opened.checkpoint, decoder, opened.dtype, opened.device)
    if not opened.device.is_gpu:
        warm_up()
    loaded = LoadedEngine(opened, decoder, kv, plan, card_steps(opened, decoder, kv, plan))
    warm_up_card(loaded)
    loaded = check_curve(loaded)
    if opened.draft is None or draft is None:
        return loaded
    shared = share_memory(opened.draft, draft, kv)
    scale_kv(shared.kv.caches, opened.draft.checkpoint, draft, opened.dtype, opened.device)
    if loaded.card is not None:
        shared = draft_on_card(opened, shared, plan, loaded.card)
    loaded = replace(loaded, draft=shared)
    return replace(loaded, trial=try_draft(loaded))


def plan_only(config: EngineConfig) -> str:
    """What `build_engine` would choose and why, without loading a weight: the step's peak is left out of the memory."""
    opened = open_engine(config)
    plan = plan_memory(memory_facts(opened, opened.device.free_bytes(), peak_bytes=0), memory_wishes(opened))
    return "\n".join([str(reason) for reason in decided(opened, plan)])


def make_tokenizer(info: EngineInfo) -> Tokenizer:
    """The tokenizer of an engine."""
    return Tokenizer.from_facts(info.tokenizer)


def _load(opened: Opened) -> Decoder:
    decoder = Decoder(opened.spec, opened.dtype, opened.device.torch_device, single_group())
    decoder.load(opened.checkpoint.tensors(opened.dtype, opened.device.torch_device))
    return decoder
