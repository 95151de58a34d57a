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

from threefold.kernels.drafting import RoundInputs, RoundState, next_inputs, note_choices
from threefold.layers.batch import Batch
from threefold.runner.certainty import likely_next
from threefold.runner.forward import DeviceRows, Pass
from threefold.runner.graphs import Capture, GraphLimits
from threefold.runner.runner import ModelRunner
from threefold.sample.sampler import most_likely

IntArray = npt.NDArray[np.int64]

MOST_FED = 2
"""Tokens that a row may be fed at once."""


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

    Attributes:
        device_rows: as given.
        block_size: as given.
        sizes: numbers of rows that graphs are for, ascending.
        out: [max_rounds, 2, sizes[-1]] int32: what each round chose, and bit by bit how sure it was.
    """

    def __init__(
        self, runner: ModelRunner, device_rows: DeviceRows, limits: GraphLimits, *, block_size: int, max_rounds: int
    ) -> None:
        self._runner = runner
        self.device_rows = device_rows
        self._max_context = limits.max_context
        self.block_size = block_size
        self.sizes = limits.row_sizes
        device = device_rows.tokens.device
        most = self.sizes[-1]
        self._logits = torch.empty(most, limits.vocab_size, dtype=torch.float32, device=device)
        self.out = torch.zeros(max_rounds, 2, most, dtype=torch.int32, device=device)
        self._places = torch.arange(MOST_FED * most, device=device)
        self._state = torch.zeros(4, most, dtype=torch.int64, device=device)  # RoundState's, for all sizes
        self._host = torch.zeros(4, most, dtype=torch.int64, pin_memory=device.type != "cpu")
        self._graphs: dict[int, Callable[[], None]] = {}

    @torch.inference_mode()
    def capture(self, capture: Capture) -> None:
        """Capture a graph for each number of rows, each over padding."""
        for size in reversed(self.sizes):
            self._stand_on_padding()
            self._graphs[size] = capture(lambda size=size: self._work(size))  # type: ignore[misc]
            self._stand_on_padding()
            self.replay(size, 1)
        capture.end()

    def _stand_on_padding(self) -> None:
        self._state.zero_()
        self._state[0] = self.device_rows.max_rows

    def size_for(self, num_rows: int) -> int:
        """The graphs that so many rows fit in."""
        return next(size for size in self.sizes if size >= num_rows)

    def run(self, first: Pass, rows: IntArray, positions: IntArray, ends: IntArray, num_rounds: int) -> Drafted:
        """Launch all rounds, then wait."""
        num_rows = len(rows)
        if first.likely is None:  # a pass without a graph left its choice to others
            assert first.logits is not None
            first.likely = most_likely(first.logits[:num_rows])
            self.device_rows.keep(first.keep_rows, first.likely.tokens)
        if num_rounds:
            self._send(rows, positions, ends)
            self.replay(self.size_for(num_rows), num_rounds)
        token_ids, chances = likely_next(first, num_rows)
        out = self.out[:num_rounds, :, :num_rows].cpu().numpy()
        return Drafted(np.concatenate((token_ids[None], out[:, 0])), np.concatenate((chances[None], chances_of(out))))

    def replay(self, size: int, num_rounds: int) -> None:
        """Launch rounds from where the state stands."""
        for _ in range(num_rounds):
            self._graphs[size]()

    def _send(self, rows: IntArray, positions: IntArray, ends: IntArray) -> None:
        num_rows = len(rows)
        host = self._host.numpy()
        host[0] = self.device_rows.max_rows
        host[1:] = 0
        host[0, :num_rows], host[1, :num_rows], host[2, :num_rows] = rows, positions, ends
        self._state.copy_(self._host, non_blocking=True)

    def state(self, size: int) -> RoundState:
        """Where the first rows stand."""
        return RoundState(*self._state[:, :size].unbind(0))

    def _work(self, size: int) -> None:
        """All that a graph does: each row is fed its last token."""
        rows = self.device_rows
        self.feed(next_inputs(self.state(size), rows.tokens, rows.block_tables, self.block_size), size, num_new=1)

    def feed(self, inputs: RoundInputs, size: int, num_new: int) -> None:
        """Feed so many rows num_new tokens each and note what comes behind them; device work only."""
        batch = Batch(
            *inputs,
            logit_tokens=self._places[num_new - 1 : size * num_new : num_new],
            max_new=num_new,
            max_context=self._max_context,
        )
        logits = self._runner.logits(self._runner.forward(batch), self._logits[:size])
        note_choices(logits, self.state(size), self.device_rows.tokens, self.out)


def chances_of(out: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """The chances among what rounds chose, [num_rounds, 2, num_rows] to [num_rounds, num_rows]."""
    return np.ascontiguousarray(out[:, 1]).view(np.float32)
