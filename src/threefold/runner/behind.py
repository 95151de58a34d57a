"""A draft model's tokens behind a step that still runs: the device judges that step itself and goes on drafting.

    tokens drawn ─┐
    drafts fed ───┴► how many hold ─► each row's last two tokens ─► draft 1 ─► rounds ─► drafts of the next step's rows

So while the card drafts, the host learns what the step came to, commits it, plans the next one and launches that, whose
drafts it names by their places. A row is fed its last two tokens: what stands before them has been fed, however many
drafts held. Knows nothing about requests, or how long anybody's KV is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from threefold.kernels.drafting import ASKED, judged_inputs
from threefold.runner.forward import DeviceRows
from threefold.runner.graphs import Capture
from threefold.runner.readback import Mark
from threefold.runner.rounds import MOST_FED, Drafted, GraphRounds, chances_of
from threefold.runner.rows import Growth

IntArray = npt.NDArray[np.int64]

_PLACE = ASKED.index("place")


class Running(NamedTuple):
    """A row of a step that was launched and is not known on the host yet."""

    first: int
    """Index of its first token among those drawn."""
    draft_ids: list[int]
    """Fed behind its known tokens; -1 - place where only the device knows them."""
    num_held: int
    """How many of them hold, where that is decreed, else BY_COMPARISON."""
    most: int
    """Longest draft that is wanted behind the step."""
    place: int
    """Where its drafts go among the tokens of the target's device rows."""


class Following(NamedTuple):
    """Such a row, as the draft model knows it."""

    running: Running
    row: int
    length: int
    """Tokens known before the step."""
    last_token: int
    """The last of them."""
    end: int
    """Positions from here on have no slots."""


class Coming(NamedTuple):
    """Drafts on their way to the host."""

    out: npt.NDArray[np.int32]
    mark: Mark

    def wait(self) -> Drafted:
        """Wait for them."""
        self.mark.synchronize()
        return Drafted(self.out[:, 0].astype(np.int64), chances_of(self.out).astype(np.float64))


class GraphBehind:
    """Drafts behind steps, on a card.

    Args:
        rounds: the draft model's, which the first pass leaves its choice to.
        target_rows: the target's tokens, among which drafts are put.
        vocab_size: the target's; a token beyond it is not fed to it.
        max_draft: longest draft.
        make_mark: gives marks.

    Attributes:
        max_draft: as given.
        max_rows: most rows that drafts can be made for at once.
    """

    def __init__(
        self,
        rounds: GraphRounds,
        target_rows: DeviceRows,
        *,
        vocab_size: int,
        max_draft: int,
        make_mark: Callable[[], Mark],
    ) -> None:
        self._rounds = rounds
        self._target_rows = target_rows
        self._vocab_size = vocab_size
        self.max_draft = max_draft
        self.max_rows = rounds.sizes[-1]
        device, most = target_rows.tokens.device, rounds.sizes[-1]
        is_pinned = device.type != "cpu"
        num_fields = len(ASKED) + max_draft
        self._asked = torch.zeros(num_fields * most, dtype=torch.int64, device=device)
        self._chosen = torch.zeros(most * (1 + max_draft), dtype=torch.int64, device=device)
        self._hosts = [torch.zeros(num_fields * most, dtype=torch.int64, pin_memory=is_pinned) for _ in range(2)]
        self._outs = [torch.zeros(max_draft * 2 * most, dtype=torch.int32, pin_memory=is_pinned) for _ in range(2)]
        self._marks = [make_mark() for _ in range(2)]
        self._graphs: dict[int, Callable[[], None]] = {}
        self._turn = 0

    @torch.inference_mode()
    def capture(self, capture: Capture) -> None:
        """Capture the first pass for each number of rows, each over padding."""
        for size in reversed(self._rounds.sizes):
            self._asked.zero_()
            self._fields(self._asked, size)[0] = self._rounds.device_rows.max_rows
            self._graphs[size] = capture(lambda size=size: self._work(size))  # type: ignore[misc]
            self._graphs[size]()
        capture.end()

    def launch(self, rows: Sequence[Following], drawn: torch.Tensor, growth: Growth) -> Coming:
        """Draft behind the step launched last; waits for nothing.

        Args:
            rows: whom for; two launches may be on their way, no more.
            drawn: the tokens that the step draws.
            growth: what the draft model's rows were given of blocks.
        """
        self._turn = 1 - self._turn
        size, num_rounds = self._rounds.size_for(len(rows)), max(row.running.most for row in rows)
        self._send(rows, size)
        if growth.places:
            self._grow(growth)
        num_drawn = min(len(drawn), len(self._chosen))
        self._chosen[:num_drawn].copy_(drawn[:num_drawn])
        self._graphs[size]()
        self._rounds.replay(size, num_rounds - 1)
        out = self._rounds.out[:num_rounds, :, :size]
        self._put(out[:, 0], size, num_rounds)
        host = self._outs[self._turn][: out.numel()].view(out.shape)
        host.copy_(out, non_blocking=True)
        mark = self._marks[self._turn]
        mark.record()
        return Coming(host.numpy()[:, :, : len(rows)], mark)

    def _send(self, rows: Sequence[Following], size: int) -> None:
        host = self._hosts[self._turn]
        fields = self._fields(host, size).numpy()
        num = len(rows)
        fields[:, num:] = 0
        fields[0, num:] = self._rounds.device_rows.max_rows
        fields[_PLACE, num:] = self._target_rows.max_rows
        columns = [
            (
                row.row, row.length, row.last_token, row.end, row.running.first, len(row.running.draft_ids),
                row.running.num_held, row.running.place,
                *row.running.draft_ids, *[0] * (self.max_draft - len(row.running.draft_ids)),
            )
            for row in rows
        ]  # fmt: skip
        fields[:, :num] = np.array(columns, dtype=np.int64).T
        num_sent = len(fields) * size
        self._asked[:num_sent].copy_(host[:num_sent], non_blocking=True)

    def _grow(self, growth: Growth) -> None:
        pair = torch.tensor([growth.places, growth.block_ids], dtype=torch.int64)
        if self._asked.device.type != "cpu":
            pair = pair.pin_memory().to(self._asked.device, non_blocking=True)
        self._rounds.device_rows.grow(pair[0], pair[1].int())

    def _put(self, token_ids: torch.Tensor, size: int, num_rounds: int) -> None:
        """Drafts to where the next step finds them; what the target does not know of is fed to it as something else."""
        places = self._fields(self._asked, size)[_PLACE]
        ahead = torch.arange(num_rounds, device=places.device)[:, None] * (places > self._target_rows.max_rows)
        known = token_ids.long().clamp_(max=self._vocab_size - 1)
        self._target_rows.keep((places + ahead).view(-1), known.view(-1))

    def _fields(self, buffer: torch.Tensor, size: int) -> torch.Tensor:
        """[fields and drafts, size] of the rows asked for."""
        num_fields = len(ASKED) + self.max_draft
        return buffer[: num_fields * size].view(num_fields, size)

    def _work(self, size: int) -> None:
        """All that a graph does."""
        rounds, own = self._rounds, self._rounds.device_rows
        asked, target_tokens = self._fields(self._asked, size), self._target_rows.tokens
        inputs = judged_inputs(
            rounds.state(size), asked, self._chosen, target_tokens, own.block_tables, rounds.block_size
        )
        rounds.feed(inputs, size, MOST_FED)
