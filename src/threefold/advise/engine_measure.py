"""Variants run for real, on one loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from threefold.advise.cores import OFF, core_with
from threefold.advise.drive import Ask, Drive
from threefold.advise.levers import Variant
from threefold.advise.result import LoadResult
from threefold.config import SpeculationConfig
from threefold.draft.policy import DraftPolicy
from threefold.engine.loaded import LoadedEngine


class EngineMeasure:
    """Fresh engines on one loaded model; a drafter's controller lives on from run to run, as it would in a server."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._loaded = loaded
        self._policies: dict[str, DraftPolicy] = {}

    def run(self, variant: Variant, asks: Sequence[Ask], users: int) -> LoadResult:
        """Answer the requests with so many users."""
        speculation, policy = OFF, None
        if variant.drafter is not None:
            asked = self._loaded.opened.config.speculation
            speculation = replace(asked if asked.is_enabled else SpeculationConfig(), methods=(variant.drafter,))
            if variant.drafter not in self._policies:
                self._policies[variant.drafter] = self._loaded.policy(speculation)[0]
            policy = self._policies[variant.drafter]
        return Drive(core_with(self._loaded, variant.settings, speculation, policy)).run(asks, users)
