"""One model and its KV on one device: batch in, hidden states and logits out.

Knows nothing about rows, plans or sampling. The engine's own model and a draft model are both run by this; a model sees
to it itself that nothing is kept for a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from threefold.layers.attention import KVCache
from threefold.layers.batch import Batch

CHUNK_TOKENS = 64
"""Prompt positions whose logits are held at once; bounds memory, not speed."""


class Model(Protocol):
    """What models.decoder.Decoder and the fakes of the tests have in common."""

    def forward(self, batch: Batch, kv: list[KVCache]) -> torch.Tensor:
        """Hidden states of batch.logit_tokens, [num_logits, hidden]; writes all tokens' keys and values."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, vocab] float32 of [n, hidden], in `out` where it is given."""


class ModelRunner:
    """Runs a model over its KV pool.

    Args:
        model: loaded.
        kv: one cache a layer, as layers.attention.allocate_kv makes them.
    """

    def __init__(self, model: Model, kv: list[KVCache]) -> None:
        self._model = model
        self._kv = kv

    def forward(self, batch: Batch) -> torch.Tensor:
        """Hidden states of the tokens whose logits are wanted, [num_logits, hidden]."""
        return self._model.forward(batch, self._kv)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, vocab] float32, the caller's own, or `out`."""
        return self._model.logits(hidden) if out is None else self._model.logits(hidden, out)

    def logits_in_chunks(self, hidden: torch.Tensor) -> Iterator[torch.Tensor]:
        """The same, at most CHUNK_TOKENS positions at a time."""
        for start in range(0, len(hidden), CHUNK_TOKENS):
            yield self.logits(hidden[start : start + CHUNK_TOKENS])
