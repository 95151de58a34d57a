"""A draft model's further tokens in one go: rounds of one token a row, each fed what the last one chose, on the card.

A round is one captured graph; launched n times it drafts n tokens, and the host waits once for all of them:

    last tokens ─► batch at (row, position) ─► logits ─► most likely ─► last tokens, positions + 1, out[round]

Knows nothing about drafts or who asked for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from threefold.kernels.argmax import most_likely_on_device
from threefold.layers.batch import Batch
from threefold.runner.certainty import certainty, likely_next
from threefold.runner.forward import DeviceRows, Pass
from threefold.runner.graphs import Capture, GraphLimits
from threefold.runner.runner import ModelRunner
from threefold.sample.sampler import most_likely

IntArray = npt.NDArray[np.int64]


class Drafted(NamedTuple):
    """What the rounds chose."""

    token_ids: IntArray
    """[1 + num_rounds, num_rows]; the first pass's choice, then each round's."""
    chances: npt.NDArray[np.float64]
    """[1 + num_rounds, num_rows], the model's probability of each."""


class Rounds(Protocol):
    """Feeds rows what was chosen for them, round after round."""

    def run(self, first: Pass, rows: IntArray, positions: IntArray, ends: IntArray, num_rounds: int) -> Drafted:
        """Run and wait.

        Args:
            first: the pass whose choices are fed in the first round, one a row.
            rows: [num_rows].
            positions: [num_rows] of these choices.
            ends: [num_rows]; from there on a row has no slots, and what it is fed leaves no trace.
            num_rounds: rounds behind the first pass.
        """


class GraphRounds:
    """Rounds on a card.

    Args:
        runner: the model.
        device_rows: last tokens and block tables.
        limits: most rows, and how long they get.
        block_size: tokens a block.
        max_rounds: most rounds.
    """

    def __init__(
        self, runner: ModelRunner, device_rows: DeviceRows, limits: GraphLimits, *, block_size: int, max_rounds: int
    ) -> None:
        self._runner = runner
        self._device_rows = device_rows
        self._max_context = limits.max_context
        self._block_size = block_size
        self._max_rows = limits.max_rows
        self._sizes = [size for i, size in enumerate(limits.sizes) if i == 0 or limits.sizes[i - 1] < limits.max_rows]
        device = device_rows.last_tokens.device
        most = self._sizes[-1]
        self._logits = torch.empty(most, limits.vocab_size, dtype=torch.float32, device=device)
        self._out = torch.zeros(max_rounds, 2, most, dtype=torch.int32, device=device)
        self._state = torch.zeros(4, most, dtype=torch.int64, device=device)  # rows, positions, ends, round
        self._host = torch.zeros(4, most, dtype=torch.int64, pin_memory=device.type != "cpu")
        self._graphs: dict[int, Callable[[], None]] = {}

    @torch.inference_mode()
    def capture(self, capture: Capture) -> None:
        """Capture a graph for each number of rows, each over padding."""
        for size in reversed(self._sizes):
            self._state.zero_()
            self._state[0] = self._max_rows
            self._graphs[size] = capture(lambda size=size: self._work(size))  # type: ignore[misc]
        capture.end()

    def run(self, first: Pass, rows: IntArray, positions: IntArray, ends: IntArray, num_rounds: int) -> Drafted:
        """Launch all rounds, then wait."""
        num_rows = len(rows)
        if first.likely is None:  # a pass without a graph left its choice to others
            assert first.logits is not None
            first.likely = most_likely(first.logits[:num_rows])
            self._device_rows.keep(first.keep_rows, first.likely.tokens)
        if num_rounds:
            self._launch(rows, positions, ends, num_rounds)
        token_ids, chances = likely_next(first, num_rows)
        out = self._out[:num_rounds, :, :num_rows].cpu().numpy()
        more = np.ascontiguousarray(out[:, 1]).view(np.float32)
        return Drafted(np.concatenate((token_ids[None], out[:, 0])), np.concatenate((chances[None], more)))

    def _launch(self, rows: IntArray, positions: IntArray, ends: IntArray, num_rounds: int) -> None:
        num_rows = len(rows)
        size = next(size for size in self._sizes if size >= num_rows)
        host = self._host.numpy()
        host[0] = self._max_rows
        host[1:] = 0
        host[0, :num_rows], host[1, :num_rows], host[2, :num_rows] = rows, positions, ends
        self._state.copy_(self._host, non_blocking=True)
        for _ in range(num_rounds):
            self._graphs[size]()

    def _work(self, size: int) -> None:
        """All that a graph does."""
        rows, positions, ends = self._state[:3, :size]
        round_index = self._state[3, :1]
        logits = self._runner.logits(self._runner.forward(self._batch(rows, positions, ends)), self._logits[:size])
        tokens, values = most_likely_on_device(logits)
        chosen = torch.stack((tokens.int(), certainty(values, logits).view(torch.int32)))
        self._out[:, :, :size].index_copy_(0, round_index, chosen[None])
        self._device_rows.keep(rows, tokens)
        positions.add_(1)
        round_index.add_(1)

    def _batch(self, rows: torch.Tensor, positions: torch.Tensor, ends: torch.Tensor) -> Batch:
        is_real = rows < self._max_rows
        tables = self._device_rows.block_tables.index_select(0, rows.clamp(max=self._max_rows - 1))
        places = (positions // self._block_size).clamp(max=tables.shape[1] - 1)
        slots = tables.gather(1, places[:, None])[:, 0] * self._block_size + positions % self._block_size
        starts = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
        return Batch(
            token_ids=self._device_rows.last_tokens[rows],
            positions=torch.where(is_real, positions, 0),
            slots=torch.where(is_real & (positions < ends), slots.long(), -1),
            row_starts=torch.minimum(starts, is_real.sum().int()),
            context_lens=torch.where(is_real, positions + 1, 0).int(),
            block_tables=tables,
            logit_tokens=starts[:-1].long(),
            max_new=1,
            max_context=self._max_context,
        )
