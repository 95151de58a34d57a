"""Changes logits as requests wish, every position exactly as if the drafts before it had been committed.

The order is vLLM's, and matters where a penalty multiplies what a bias has added:

    1. allowed_token_ids     everything else -> -inf
    2. bad_words, min_tokens what may not come here -> -inf
    3. logit_bias            added
    4. repetition_penalty    divides positive, multiplies negative logits of tokens in prompt or output
    5. frequency_penalty     subtracted for every time a token stands in the output
       presence_penalty      subtracted once if it stands there
    (then, in sampler.py: temperature, min_p, top_k, top_p)

Each step gathers the edits of all rows into flat arrays and applies them at once, so a step costs a handful of tensor
operations on any device, however many rows take part. Knows nothing about how tokens are then drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from threefold.sample.transforms import Transforms

IntArray = npt.NDArray[np.int64]


class Window(NamedTuple):
    """One row's positions among a step's logits: the next token's, and one behind each draft."""

    transforms: Transforms
    first: int
    """Index of the first position's logits."""
    num_output: int
    """Output tokens committed so far."""
    drafts: list[int]
    """Drafts behind the committed tokens."""


def transform(logits: torch.Tensor, windows: Sequence[Window]) -> None:
    """Apply every wish of every window in place.

    Args:
        logits: [num_positions, vocab] float32.
        windows: rows with wishes; positions outside them are left alone.
    """
    keep_allowed(logits, windows)
    ban(logits, windows)
    add_bias(logits, windows)
    penalise(logits, windows)


def keep_allowed(logits: torch.Tensor, windows: Sequence[Window]) -> None:
    """Step 1: only allowed_token_ids keep their logits."""
    edits, positions = _Edits(), []
    for window in windows:
        if window.transforms.allowed is not None:
            for position in _positions(window):
                positions.append(position)
                edits.add(position, window.transforms.allowed)
    if positions:
        where = edits.index(logits.device)
        kept = logits[where]
        logits[torch.tensor(positions, device=logits.device)] = -torch.inf
        logits[where] = kept


def ban(logits: torch.Tensor, windows: Sequence[Window]) -> None:
    """Step 2: tokens that bad_words or min_tokens keep away."""
    edits = _Edits()
    for transforms, first, num_output, drafts in windows:
        if transforms.bad_words or num_output < transforms.min_tokens:
            for ahead in range(len(drafts) + 1):
                edits.add(first + ahead, transforms.banned(num_output + ahead, drafts[:ahead]))
    if edits:
        logits[edits.index(logits.device)] = -torch.inf


def add_bias(logits: torch.Tensor, windows: Sequence[Window]) -> None:
    """Step 3: logit_bias."""
    edits, biases = _Edits(), []
    for window in windows:
        if len(window.transforms.biases):
            for position in _positions(window):
                edits.add(position, window.transforms.bias_token_ids)
                biases.append(window.transforms.biases)
    if edits:
        logits[edits.index(logits.device)] += torch.from_numpy(np.concatenate(biases)).to(logits.device)


def penalise(logits: torch.Tensor, windows: Sequence[Window]) -> None:
    """Steps 4 and 5: the three penalties."""
    edits, factors, amounts = _Edits(), [], []
    for transforms, first, _, drafts in windows:
        if transforms.history is not None:
            for ahead, (token_ids, counts) in enumerate(transforms.history.counted(drafts)):
                edits.add(first + ahead, token_ids)
                factors.append(np.full(len(token_ids), transforms.repetition_penalty, dtype=np.float32))
                amounts.append(transforms.frequency_penalty * counts + transforms.presence_penalty * (counts > 0))
    if edits:
        where = edits.index(logits.device)
        factor = torch.from_numpy(np.concatenate(factors)).to(logits.device)
        amount = torch.from_numpy(np.concatenate(amounts).astype(np.float32)).to(logits.device)
        values = logits[where]
        logits[where] = torch.where(values > 0, values / factor, values * factor) - amount


def _positions(window: Window) -> range:
    return range(window.first, window.first + len(window.drafts) + 1)


class _Edits:
    """Entries of the logits to be changed, gathered position by position."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._token_ids: list[IntArray] = []

    def add(self, position: int, token_ids: IntArray) -> None:
        self._positions.append(position)
        self._token_ids.append(token_ids)

    def __bool__(self) -> bool:
        return bool(self._positions)

    def index(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(positions, token ids), both [num_edits], ready to index logits with."""
        positions = np.repeat(self._positions, [len(ids) for ids in self._token_ids])
        token_ids = np.concatenate(self._token_ids)
        return torch.from_numpy(positions).to(device), torch.from_numpy(token_ids).to(device)
