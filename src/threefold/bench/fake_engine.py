"""An engine without a model behind the real server and the real engine process: what streaming alone can carry.

Run as a program it serves on a free port of the loopback until it is told to stop; its argument is the plain data of
`FakeEngineOptions` as JSON.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from threefold.cache.manager import CacheManager
from threefold.config import EngineConfig, ServerConfig
from threefold.draft.policy import NoDrafts
from threefold.engine.client import EngineClient
from threefold.engine.core import EngineCore
from threefold.engine.loop import BuiltEngine
from threefold.engine.outputs import EngineInfo
from threefold.schedule.scheduler import Scheduler
from threefold.testing.byte_tokenizer import ByteTokenizer
from threefold.testing.fake_executor import FakeExecutor

FACTORY = "threefold.bench.fake_engine:build"
MODEL_NAME = "fake"
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 16


class FakeEngineOptions(msgspec.Struct, frozen=True):
    """What the fake is like."""

    max_num_seqs: int = 256
    """Requests that run at once."""
    step_s: float = 0.0
    """Time that a step pretends to take."""


def build(config: dict[str, Any]) -> BuiltEngine:
    """Build the engine from plain data; called in the engine's process."""
    asked = msgspec.convert(config, FakeEngineOptions)
    tokenizer = ByteTokenizer()
    num_blocks = asked.max_num_seqs * MAX_MODEL_LEN // BLOCK_SIZE
    scheduler = Scheduler(
        CacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True),
        NoDrafts(),
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=max(8192, asked.max_num_seqs),
    )
    core = EngineCore(scheduler, FakeExecutor(step_s=asked.step_s), vocab_size=tokenizer.vocab_size)
    info = EngineInfo(
        model=MODEL_NAME,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=tokenizer.vocab_size,
        served_model_names=(MODEL_NAME,),
        eos_token_ids=tokenizer.eos_token_ids,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=asked.max_num_seqs,
    )
    return BuiltEngine(core, info)


def main(words: list[str]) -> int:
    """Serve the fake; `words` is one JSON object."""
    from threefold.server.run import run_server

    asked = msgspec.json.decode(words[0], type=FakeEngineOptions)

    async def start(_: EngineConfig) -> EngineClient:
        return await EngineClient.start(FACTORY, msgspec.to_builtins(asked), lambda _info: ByteTokenizer())

    config = ServerConfig(port=0, log_stats_interval_s=0.0, shutdown_timeout_s=0.0)
    return run_server(EngineConfig(), config, start_client=start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
