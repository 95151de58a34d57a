"""Variants run for real, on one loaded model at a time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

from threefold.advise.cores import OFF, core_with
from threefold.advise.drive import Ask, Drive
from threefold.advise.levers import AWQ, FP8, KV8, Variant
from threefold.advise.result import LoadResult
from threefold.config import EngineConfig, SpeculationConfig
from threefold.draft.policy import DraftPolicy
from threefold.engine.build import load_engine
from threefold.engine.loaded import LoadedEngine
from threefold.engine.opened import open_engine
from threefold.errors import ConfigError


class OneEngine:
    """The engine that is loaded, once it is asked for; the model in another form takes its place.

    A card has room for one.

    Args:
        config: of the engine as it is.
        awq_model: the model in AWQ, a folder; None = there is none.
    """

    def __init__(self, config: EngineConfig, awq_model: str | None = None) -> None:
        model, cache = config.model, config.cache
        self._configs = {
            "": config,
            FP8: replace(config, model=replace(model, quantization="fp8")),
            KV8: replace(config, cache=replace(cache, kv_cache_dtype="fp8")),
        }
        if awq_model is not None:
            self._configs[AWQ] = replace(config, model=replace(model, model=awq_model))
        self._form = ""
        self._loaded: LoadedEngine | None = None

    @property
    def forms(self) -> list[str]:
        """Levers for which the model can be loaded anew."""
        return [form for form in self._configs if form]

    def at_hand(self) -> LoadedEngine:
        """In whatever form it is loaded; as it is, where it is not."""
        return self.loaded() if self._loaded is None else self._loaded

    def other_forms(self) -> list[str]:
        """Those of them in which the model is not already.

        Raises:
            ConfigError: it is not on a card.
        """
        opened = open_engine(self._configs[""])
        if not opened.device.is_gpu:
            raise ConfigError("--reload measures quantisation, of which nothing is predicted on a CPU; leave it out")
        given = {KV8} if opened.kv_dtype.itemsize == 1 else set()
        if opened.spec.quantization is not None:
            given |= {FP8, AWQ}
        return [form for form in self.forms if form not in given]

    def loaded(self, form: str = "") -> LoadedEngine:
        """The engine with the model as a lever has it; "" = as it is.

        Raises:
            OperatorError: it cannot be loaded so.
        """
        if self._loaded is None or form != self._form:
            if self._loaded is not None:
                device, self._loaded = self._loaded.opened.device, None
                gc.collect()  # graphs and what they replay hold each other
                device.release_unused()
            self._form = form
            self._loaded = load_engine(self._configs[form])
        return self._loaded


class EngineMeasure:
    """Fresh cores on one loaded model; a drafter's controller lives on from run to run, as it would in a server."""

    def __init__(self, engine: OneEngine) -> None:
        self._engine = engine
        self._policies: dict[str, DraftPolicy] = {}

    def run(self, variant: Variant, asks: Sequence[Ask], users: int) -> LoadResult:
        """Answer the requests with so many users."""
        loaded = self._engine.loaded(variant.name if variant.name in self._engine.forms else "")
        speculation, policy = OFF, None
        if variant.drafter is not None:
            asked = loaded.opened.config.speculation
            speculation = replace(asked if asked.is_enabled else SpeculationConfig(), methods=(variant.drafter,))
            if variant.drafter not in self._policies:
                self._policies[variant.drafter] = loaded.policy(speculation)[0]
            policy = self._policies[variant.drafter]
        return Drive(core_with(loaded, variant.settings, speculation, policy)).run(asks, users)
