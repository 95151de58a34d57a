"""One of the two models, ready to read text: the engine's own decoder over its own paged KV cache.

So quantised products and an FP8 KV cache count as they do when served. Texts are fed whole, and the logits behind every
judged token come out a few positions at a time. Knows nothing about what is made of them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from threefold.config import EngineConfig, SpeculationConfig
from threefold.engine.build import load_engine
from threefold.engine.loaded import LoadedEngine
from threefold.layers.batch import Batch
from threefold.quality.documents import Piece

CHUNK_POSITIONS = 128
"""Positions whose logits are held at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some positions of a batch."""

    logits: torch.Tensor  # [n, vocab] float32
    targets: torch.Tensor  # [n] int64, the tokens that follow


class Side:
    """A loaded model."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._decoder = loaded.decoder
        self._kv = loaded.kv
        self._device = loaded.opened.device
        self._block_size = loaded.opened.config.cache.block_size

    @torch.inference_mode()
    def read(self, pieces: Sequence[Piece]) -> Iterator[Chunk]:
        """Feed pieces at once; their judged positions in order."""
        device = self._device.torch_device
        hidden = self._decoder.forward(make_batch(pieces, self._block_size, device), self._kv)
        targets = torch.tensor([token for piece in pieces for token in piece.token_ids[piece.first :]], device=device)
        for start in range(0, len(hidden), CHUNK_POSITIONS):
            part = slice(start, start + CHUNK_POSITIONS)
            yield Chunk(self._decoder.logits(hidden[part]), targets[part])

    def release(self) -> None:
        """Let go of weights and KV; nothing is read after that."""
        del self._decoder, self._kv
        gc.collect()  # layers refer to each other: without it the weights would stay until some later moment
        self._device.release_unused()


def load_side(config: EngineConfig, step_tokens: int, longest: int, max_rows: int) -> Side:
    """Load a model with KV for one step and nothing more.

    Args:
        config: which model, and how.
        step_tokens: most tokens that are fed at once.
        longest: tokens of the longest piece.
        max_rows: most pieces that are fed at once.

    Raises:
        OperatorError: as load_engine; MemoryPlanError when it does not fit beside what is loaded.
    """
    num_blocks = step_tokens // config.cache.block_size + max_rows + 1
    sized = replace(
        config,
        model=replace(config.model, max_model_len=longest),
        cache=replace(config.cache, num_blocks=num_blocks, kv_cache_memory_bytes=None),
        scheduler=replace(config.scheduler, max_num_seqs=1, max_num_batched_tokens=step_tokens),
        speculation=SpeculationConfig(methods=()),
    )
    return Side(load_engine(sized))


def make_batch(pieces: Sequence[Piece], block_size: int, device: torch.device) -> Batch:
    """Pieces as rows from position 0 on, each in blocks of its own, logits wanted before every judged token."""
    lengths = [len(piece.token_ids) for piece in pieces]
    starts = [0, *accumulate(lengths)]
    blocks = [-(-length // block_size) for length in lengths]
    first_blocks = [0, *accumulate(blocks)][:-1]
    places = torch.cat([torch.arange(length) for length in lengths])
    bases = torch.tensor(first_blocks).repeat_interleave(torch.tensor(lengths)) * block_size
    tables = torch.tensor(first_blocks).unsqueeze(1) + torch.arange(max(blocks))
    wanted = [
        torch.arange(start + piece.first - 1, start + len(piece.token_ids) - 1)
        for start, piece in zip(starts, pieces, strict=False)
    ]
    return Batch(
        token_ids=torch.tensor([token for piece in pieces for token in piece.token_ids], device=device),
        positions=places.to(device),
        slots=(bases + places).to(device),
        row_starts=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=tables.clamp_max(sum(blocks) - 1).to(device, torch.int32),
        logit_tokens=torch.cat(wanted).to(device),
        max_new=max(lengths),
        max_context=max(lengths),
    )
