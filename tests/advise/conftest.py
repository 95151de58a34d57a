"""A tokenizer of words, logs on disk, and a machine whose costs are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from threefold.advise.facts import MachineFacts
from threefold.advise.trace import Encoder
from threefold.cost import CostCurve

KNOTS = [(1, 4.0), (64, 4.3), (128, 4.6), (256, 6.5), (512, 11.8), (1024, 24.2), (2048, 44.8)]


class WordTokenizer:
    """One id a word, in the order of their first use."""

    chat_template = None

    def __init__(self) -> None:
        self.special_tokens: dict[str, str] = {}
        self._ids: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in text.split()]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        words = list(self._ids)
        return " ".join(words[index] for index in ids)


@pytest.fixture
def tokenizer() -> WordTokenizer:
    return WordTokenizer()


@pytest.fixture
def encoder(tokenizer: WordTokenizer) -> Encoder:
    return Encoder(tokenizer)


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[..., Path]:
    def write(entries: Iterable[Any], name: str = "log.jsonl") -> Path:
        path = tmp_path / name
        lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def facts() -> MachineFacts:
    return MachineFacts(
        model="made-up",
        device="card",
        curve=CostCurve(KNOTS, kv_token_ms=3e-5).to_dict(),
        num_blocks=20_000,
        block_size=16,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        weights_bytes=16 << 30,
        kv_token_bytes=147_456,
        is_gpu=True,
    )
