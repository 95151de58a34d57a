"""Engines with other settings on one loaded model: what can change without reading a weight again."""

from __future__ import annotations

from dataclasses import replace

from threefold.advise.simulate import Settings
from threefold.config import SpeculationConfig
from threefold.draft.policy import DraftPolicy, NoDrafts
from threefold.engine.core import EngineCore
from threefold.engine.loaded import LoadedEngine

OFF = SpeculationConfig(methods=())


def core_with(
    loaded: LoadedEngine, settings: Settings, speculation: SpeculationConfig = OFF, policy: DraftPolicy | None = None
) -> EngineCore:
    """A fresh engine; the settings may be no larger than what memory was planned for."""
    opened, plan = loaded.opened, loaded.plan
    config = opened.config
    cache = replace(config.cache, enable_prefix_caching=settings.has_prefix_cache)
    limits = replace(opened.limits, max_num_batched_tokens=settings.max_num_batched_tokens)
    changed = replace(
        loaded,
        opened=replace(opened, config=replace(config, cache=cache), limits=limits),
        plan=replace(plan, max_num_seqs=min(settings.max_num_seqs, plan.max_num_seqs)),
    )
    return changed.core(speculation, policy or NoDrafts())
