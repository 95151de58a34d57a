"""One step's arrays through the model, and what stays on the device for the next step.

Two ways lead to the same result: on the host's own memory, without a copy, and from one staged upload on a card. A
third, captured graphs, stands in graphs.py. Knows nothing about plans, sampling parameters or drafts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from threefold.kernels.staged import unpack_step
from threefold.layers.batch import Batch
from threefold.runner.inputs import StepArrays
from threefold.runner.rows import Rows
from threefold.runner.runner import ModelRunner
from threefold.runner.staging import StagedShape, StagedViews, Staging
from threefold.sample.sampler import Likely


@dataclass(slots=True)
class Pass:
    """What a forward pass left on the device."""

    hidden: torch.Tensor | None  # [num_logits or more, hidden] of the tokens whose logits are wanted, None = all were
    logits: torch.Tensor | None  # [num_wanted or more, vocab] float32, None = nobody wants a token
    keep_rows: torch.Tensor  # [num_wanted or more] int64, whose next input is chosen at each position
    likely: Likely | None = None  # the most likely tokens, where the pass found them already; then they are kept too


class Forward(Protocol):
    """Runs one step's arrays."""

    def run(self, arrays: StepArrays, num_wanted: int) -> Pass:
        """Launch a pass; the first num_wanted logits are for drawing tokens, the hidden states behind for logprobs."""


class DeviceRows:
    """What the device itself keeps of each row, so that a step can be launched before the host knows its last token.

    Attributes:
        tokens: int64, [max_rows] the last token chosen for each row, one place for what nobody needs, and behind it
            [max_rows, max_draft] drafts that the host does not know yet.
        block_tables: [max_rows, max_blocks] int32.
    """

    def __init__(self, max_rows: int, max_blocks: int, device: torch.device, max_draft: int = 0) -> None:
        self._max_draft = max_draft
        self.tokens = torch.zeros(max_rows * (1 + max_draft) + 1, dtype=torch.int64, device=device)
        self.block_tables = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self._entries = self.block_tables.view(-1)

    @property
    def max_rows(self) -> int:
        """Rows that there are."""
        return self.block_tables.shape[0]

    def draft_place(self, row: int) -> int:
        """Where a row's drafts begin among the tokens; the token at a place is named -1 - place in a step's arrays."""
        return self.max_rows + 1 + row * self._max_draft

    def grow(self, places: torch.Tensor, block_ids: torch.Tensor) -> None:
        """Write entries of the tables, counted row by row."""
        self._entries.index_copy_(0, places, block_ids)

    def keep(self, keep_rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Note the tokens chosen for these rows, or for other places, both [n]."""
        self.tokens.index_copy_(0, keep_rows, tokens)

    def resolve(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Put in the tokens that a step before chose, where an id is -1 - their place."""
        places = (-1 - token_ids).clamp_(min=0)
        return torch.where(token_ids < 0, self.tokens[places], token_ids)


class HostForward:
    """Runs steps on a CPU; the arrays are the tensors, and the host's block tables serve."""

    def __init__(self, runner: ModelRunner, rows: Rows, device_rows: DeviceRows) -> None:
        self._runner = runner
        self._rows = rows
        self._device_rows = device_rows

    def run(self, arrays: StepArrays, num_wanted: int) -> Pass:
        """Run a pass; it is done when this returns."""
        hidden = self._runner.forward(self._batch(arrays))
        logits = self._runner.logits(hidden[:num_wanted]) if num_wanted else None
        return Pass(hidden, logits, torch.from_numpy(arrays.keep_rows[:num_wanted]))

    def _batch(self, arrays: StepArrays) -> Batch:
        token_ids = torch.from_numpy(arrays.token_ids)
        num_blocks = -(-arrays.max_context // self._rows.block_size)
        return Batch(
            token_ids=self._device_rows.resolve(token_ids) if arrays.has_unknown else token_ids,
            positions=torch.from_numpy(arrays.positions),
            slots=torch.from_numpy(arrays.slots),
            row_starts=_int32(arrays.row_starts),
            context_lens=_int32(arrays.context_lens),
            block_tables=torch.from_numpy(self._rows.block_tables[arrays.row_ids, :num_blocks]),
            logit_tokens=torch.from_numpy(arrays.logit_tokens),
            max_new=arrays.max_new,
            max_context=arrays.max_context,
        )


class StagedForward:
    """Runs steps on a card as they are, one kernel after another: prompt chunks, and what no graph holds.

    Args:
        runner: the model.
        staging: where steps are written.
        device_rows: what the device keeps of each row.
        logit_sizes: numbers of logits, ascending, that have been met before any request is: a step's are padded up to
            the next. The first product of a new size loads its kernel, for which CUDA waits until the device is idle.
    """

    def __init__(
        self, runner: ModelRunner, staging: Staging, device_rows: DeviceRows, logit_sizes: Sequence[int] = ()
    ) -> None:
        self._runner = runner
        self._staging = staging
        self._device_rows = device_rows
        self._logit_sizes = logit_sizes

    @torch.inference_mode()
    def run(self, arrays: StepArrays, num_wanted: int) -> Pass:
        """Launch a pass."""
        num_logits, num_drawn = len(arrays.logit_tokens), num_wanted
        if 0 < num_wanted == num_logits:
            num_logits = num_drawn = next_size(num_wanted, self._logit_sizes)
        shape = StagedShape(len(arrays.token_ids), len(arrays.row_ids), num_logits)
        self._staging.put(arrays, shape, self._device_rows.grow)
        views = self._staging.views(shape)
        batch, keep_rows = staged_batch(views, self._device_rows, arrays.max_new, arrays.max_context)
        hidden = self._runner.forward(batch)
        logits = self._runner.logits(hidden[:num_drawn])[:num_wanted] if num_wanted else None
        return Pass(hidden, logits, keep_rows[:num_wanted])


def staged_batch(
    views: StagedViews, device_rows: DeviceRows, max_new: int, max_context: int
) -> tuple[Batch, torch.Tensor]:
    """The batch that lies in the staging buffer, and whose next input each of its logits is: device work only."""
    wide, tables = unpack_step(
        views.wide, views.shape.num_tokens, views.row_ids, device_rows.tokens, device_rows.block_tables
    )
    longs = views.longs(wide)
    batch = Batch(
        token_ids=longs.token_ids,
        positions=longs.positions,
        slots=longs.slots,
        row_starts=views.row_starts,
        context_lens=views.context_lens,
        block_tables=tables,
        logit_tokens=longs.logit_tokens,
        max_new=max_new,
        max_context=max_context,
    )
    return batch, longs.keep_rows


def next_size(num: int, sizes: Sequence[int]) -> int:
    """The first of these sizes, ascending, that so many fit into; none does = so many."""
    place = bisect_left(sizes, num)
    return sizes[place] if place < len(sizes) else num


def _int32(array: npt.NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32))
