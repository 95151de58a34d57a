"""What the advice needs to know of a model on a machine; measured once, kept as a JSON file where that is wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from threefold.advise.curve_executor import Host, Machine
from threefold.advise.simulate import Settings
from threefold.cost import CostCurve
from threefold.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A model on a device."""

    model: str
    device: str
    curve: dict[str, Any]
    """As CostCurve.to_dict has it."""
    num_blocks: int
    """KV blocks that fit."""
    block_size: int
    max_num_seqs: int
    """What the engine would take by default, and the most that memory was planned for."""
    max_num_batched_tokens: int
    weights_bytes: int = 0
    """Of the model, 0 = not known."""
    kv_token_bytes: int = 0
    """KV of one token, 0 = not known."""
    is_gpu: bool = False
    is_dummy: bool = False
    """True when weights are made up: speed is real, what the model says is not."""
    quantization: str = ""
    """Form of the weights, "" = plain."""
    is_kv8: bool = False
    """True when KV is kept in 8 bits."""
    host: dict[str, Any] = field(default_factory=dict)
    """What a step takes beyond the curve, as curve_executor.Host has it."""
    asking: dict[str, Any] | None = None
    """The same of a step that asks for drafts and verifies none; None = not measured."""
    verifying: dict[str, Any] | None = None
    """The same of a step that verifies drafts."""
    prompts: dict[str, Any] | None = None
    """The curve of steps that feed prompts, see curve_executor; None = not measured."""
    notes: tuple[str, ...] = ()
    """Where the figures come from."""

    def machine(self, propose_ms: float = 0.0) -> Machine:
        """For the simulator."""
        return Machine(
            CostCurve.from_dict(self.curve),
            self.num_blocks,
            self.block_size,
            _host(self.host),
            None if self.prompts is None else CostCurve.from_dict(self.prompts),
            asking=None if self.asking is None else _host(self.asking),
            verifying=None if self.verifying is None else _host(self.verifying),
            propose_ms=propose_ms,
        )

    def settings(self) -> Settings:
        """The engine's own choice."""
        return Settings(self.max_num_seqs, self.max_num_batched_tokens)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MachineFacts:
        """What to_dict wrote.

        Raises:
            ConfigError: it is no such thing.
        """
        try:
            facts = cls(**{**data, "notes": tuple(data.get("notes", ()))})
            facts.machine()
            has_room = min(facts.num_blocks, facts.block_size, facts.max_num_seqs, facts.max_num_batched_tokens) >= 1
        except (AttributeError, TypeError, ValueError, ConfigError) as error:
            raise ConfigError(f"not a machine as `threefold advise --save-machine` writes it: {error}") from None
        if not has_room:
            raise ConfigError("a machine's blocks, block size, rows and tokens a step must be at least 1")
        return facts


def _host(data: Mapping[str, Any]) -> Host:
    by_rows = tuple((float(rows), float(ms)) for rows, ms in data.get("by_rows", ()))
    return Host(**{**data, "by_rows": by_rows})


def read_facts(path: Path) -> MachineFacts:
    """A machine from a file.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--machine {path}: cannot read it: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"--machine {path}: wants a JSON object")
    return MachineFacts.from_dict(data)
