"""Factories that the engine processes of these tests are started with; imported there by name."""

from __future__ import annotations

import os
import time
from typing import Any

from threefold.cache.manager import CacheManager
from threefold.cost import CostCurve
from threefold.draft.controller import NoDrafts
from threefold.engine.core import EngineCore
from threefold.engine.loop import BuiltEngine
from threefold.engine.outputs import EngineInfo
from threefold.errors import ModelLoadError
from threefold.request import Request
from threefold.schedule.scheduler import Scheduler
from threefold.schedule.slo import Slo
from threefold.testing.byte_tokenizer import ByteTokenizer
from threefold.testing.fake_executor import FakeExecutor
from threefold.testing.fake_model import FakeModel

TOKENIZER = ByteTokenizer()


def build(config: dict[str, Any]) -> BuiltEngine:
    """An engine over the FakeExecutor."""
    info = EngineInfo(
        model="fake",
        max_model_len=config.get("max_model_len", 2048),
        vocab_size=TOKENIZER.vocab_size,
        served_model_names=("fake",),
        eos_token_ids=TOKENIZER.eos_token_ids,
        num_blocks=config.get("num_blocks", 4096),
        max_num_seqs=config.get("max_num_seqs", 256),
        max_num_queued_reqs=config.get("max_num_queued_reqs", 1024),
        notes=("num_blocks 4096: because",),
    )
    scheduler = Scheduler(
        CacheManager(info.num_blocks, info.block_size),
        NoDrafts(),
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=2048,
        slo=Slo(CostCurve([(1, 5.0), (2048, 5.0)]), config["slo"]) if "slo" in config else None,
    )
    executor = FakeExecutor(FakeModel(), step_s=config.get("step_s", 0.0))
    return BuiltEngine(TouchyCore(scheduler, executor, vocab_size=TOKENIZER.vocab_size), info)


class TouchyCore(EngineCore):
    """Fails in the way that a request's priority asks for."""

    def add_request(self, request: Request) -> None:
        if request.priority == -1:
            raise RuntimeError("cannot add this")
        if request.priority == -2:
            self.executor.step_fault = RuntimeError("the card fell off")
        if request.priority == -3:
            self.executor.row_faults[request.request_id] = "this row only"
        super().add_request(request)


def build_nothing(config: dict[str, Any]) -> BuiltEngine:
    raise ModelLoadError("no such file: model.safetensors")


def build_with_a_bug(config: dict[str, Any]) -> BuiltEngine:
    raise KeyError("oops")


def build_and_vanish(config: dict[str, Any]) -> BuiltEngine:
    os._exit(9)


def build_forever(config: dict[str, Any]) -> BuiltEngine:
    while True:
        time.sleep(0.1)
