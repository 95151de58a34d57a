"""Starts the engine's process for the server; the one file here that names the engine."""

from __future__ import annotations

import msgspec

from threefold.config import EngineConfig
from threefold.engine.client import EngineClient
from threefold.text.tokenizer import Tokenizer

ENGINE_FACTORY = "threefold.engine.build:build_from_plain"
"""Called in the engine's process; by name, since tensors stay out of this one."""


async def start_engine(config: EngineConfig) -> EngineClient:
    """Start the engine's process and wait until it stands.

    Raises:
        OperatorError: it cannot be built as configured.
        EngineDeadError: it ended before it stood.
    """
    return await EngineClient.start(
        ENGINE_FACTORY, msgspec.to_builtins(config), lambda info: Tokenizer.from_facts(info.tokenizer)
    )
