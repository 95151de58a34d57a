"""Logits to committed tokens: transforms, draws, verification of drafts, log-probabilities, each row by its own wishes.

    logits ─► raw copies for logprobs ─► transforms ─► most likely / drawn token at every position ─► accepted prefix

A batch that wants nothing but most likely tokens takes the first arrow to the last: one argmax. Knows nothing about
plans, KV or drafters. One row's fault (logits that are no numbers, nothing left to draw) is that row's alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from threefold.kernels.argmax import most_likely_on_device
from threefold.sample.draw import DeviceFilters, draw, draw_on_device
from threefold.sample.logits import Window, transform
from threefold.sample.logprobs import Choice, RawLogits
from threefold.sample.native import Filters
from threefold.sample.noise import uniforms
from threefold.sample.table import SamplingTable
from threefold.sample.verify import Acceptance
from threefold.step import TokenLogprobs

IntArray = npt.NDArray[np.int64]

NOT_FINITE = "the model's logits for this request are not finite numbers"
NOTHING_LEFT = "allowed_token_ids, bad_words, logit_bias and min_tokens together leave no token that may be generated"


@dataclass(slots=True)
class Wanted:
    """The positions of a step at which tokens are wanted: for each row the next one and one behind each draft.

    logits   [ row 0: next, behind draft 1, ... | row 1: next | ... ]
    first      0                                  first[1]
    """

    rows: IntArray  # [num_rows] row in the sampling table
    first: list[int]  # [num_rows] index of the row's first logits
    num_output: list[int]  # [num_rows] output tokens before the first one wanted
    drafts: list[list[int]]  # [num_rows] drafts behind them
    has_drafts: bool = True  # False = all of them are empty


class Likely(NamedTuple):
    """A token for each position, and its position's largest logit; on the logits' device."""

    tokens: torch.Tensor
    """[num_positions] int64."""
    values: torch.Tensor
    """[num_positions] float32, NaN where any logit is NaN."""
    packed: torch.Tensor | None = None
    """[2, num_positions or more] int32, both of them bit by bit, where they lie side by side already."""


class Chosen(NamedTuple):
    """Tokens drawn on the device, and what is needed to judge them once the host has them."""

    likely: Likely
    windows: list[Window]
    """Rows with wishes about their logits."""
    raw: RawLogits | None
    """The logits of rows that want logprobs."""


class Sampled(NamedTuple):
    """What one row came to."""

    token_ids: list[int]
    """Accepted drafts and one more; empty when the row failed."""
    logprobs: list[TokenLogprobs] | None
    """One entry a token, when asked."""
    error: str | None
    """Why the row failed."""


class Sampler:
    """Draws and verifies: `choose` is the device's part and waits for nothing, `judge` is the host's.

    Args:
        table: the rows' sampling parameters.
        acceptance: the rule by which drafts hold.
    """

    def __init__(self, table: SamplingTable, acceptance: Acceptance) -> None:
        self._table = table
        self._acceptance = acceptance

    def sample(self, logits: torch.Tensor, wanted: Wanted) -> list[Sampled]:
        """Choose and judge at once; arguments and result are theirs."""
        chosen = self.choose(logits, wanted)
        return self.judge(chosen.likely.tokens.cpu().numpy(), chosen.likely.values.cpu().numpy(), chosen, wanted)

    def choose(self, logits: torch.Tensor, wanted: Wanted, likely: Likely | None = None) -> Chosen:
        """Draw a token at every position.

        Args:
            logits: [num_positions, vocab] float32; overwritten where requests have wishes about them.
            wanted: whose positions these are.
            likely: the logits' most likely tokens, where they are known already.
        """
        table = self._table
        if table.is_plain[wanted.rows].all():
            return Chosen(likely or most_likely(logits), [], None)
        raw = self._keep_raw(logits, wanted)
        windows = self._windows(wanted)
        if windows:
            transform(logits, windows)
            likely = None
        likely = likely or most_likely(logits)
        if table.is_sampled[wanted.rows].any():
            likely = Likely(self._draw(logits, wanted, likely), likely.values)
        return Chosen(likely, windows, raw)

    def judge(self, tokens: IntArray, values: npt.NDArray[np.float32], chosen: Chosen, wanted: Wanted) -> list[Sampled]:
        """What every row came to.

        Args:
            tokens: [num_positions] those drawn.
            values: [num_positions] the largest logits.
            chosen: what `choose` gave.
            wanted: as there.

        Returns:
            One entry a row, in the order of wanted.rows.
        """
        faults = _faults(values)
        for window in chosen.windows if faults else ():
            for position in range(window.first, window.first + len(window.drafts) + 1):
                if values[position] == -np.inf:
                    faults[position] = NOTHING_LEFT
        if not faults and not wanted.has_drafts and chosen.raw is None:
            return [Sampled([token_id], None, None) for token_id in tokens.tolist()]
        sampled = self._commit(tokens.tolist(), faults, wanted)
        return sampled if chosen.raw is None else self._with_logprobs(sampled, chosen.raw, wanted)

    def decreed(self, wanted: Wanted) -> list[int] | None:
        """How many drafts of each row hold whatever is drawn; None = drawing decides."""
        num_drafts = np.array([len(drafts) for drafts in wanted.drafts])
        decreed = self._acceptance.decreed(num_drafts, self._table.seeds[wanted.rows], np.array(wanted.num_output))
        return None if decreed is None else decreed.tolist()

    def has_history(self, rows: IntArray) -> bool:
        """Whether any of these rows wishes something of its logits, for which drafts are its history."""
        return any(self._table.transforms[row] is not None for row in rows.tolist())

    def _draw(self, logits: torch.Tensor, wanted: Wanted, likely: Likely) -> torch.Tensor:
        """[num_positions] int64: the most likely tokens, but drawn ones for rows with a temperature."""
        table = self._table
        num_positions = np.array([len(drafts) + 1 for drafts in wanted.drafts])
        rows = np.repeat(wanted.rows, num_positions)
        # first[i] is where row i's positions begin, so this counts 0, 1, 2, ... within each row.
        ahead = np.arange(len(rows)) - np.repeat(wanted.first, num_positions)
        numbers = uniforms(table.seeds[rows], np.repeat(wanted.num_output, num_positions) + ahead)
        if logits.device.type != "cpu":
            return self._draw_on_device(logits, rows, numbers)
        chosen = table.is_sampled[rows]
        chosen[list(_faults(likely.values.numpy()))] = False
        places = chosen.nonzero()[0]
        rows = rows[places]
        if len(places) < len(chosen):
            logits = logits[torch.from_numpy(places)]
        filters = Filters(table.top_k[rows], table.top_p[rows], table.min_p[rows])
        tokens = likely.tokens.numpy().copy()
        tokens[places] = draw(logits, table.temperature[rows], filters, numbers[places])
        return torch.from_numpy(tokens)

    def _draw_on_device(self, logits: torch.Tensor, rows: IntArray, numbers: npt.NDArray[np.float64]) -> torch.Tensor:
        """All positions at once, with one upload; a temperature of 0 takes the most likely token."""
        table, num = self._table, len(rows)
        room = -(-num // 4) * 4  # so that each column begins at a multiple of 16 bytes
        columns = np.zeros((6, room), dtype=np.float32)  # the numbers' halves come first
        columns[:2].reshape(-1).view(np.float64)[:num] = numbers
        columns[2, :num] = np.where(table.is_sampled[rows], table.temperature[rows], 0.0)
        columns[3, :num], columns[4, :num] = table.top_p[rows], table.min_p[rows]
        columns[5].view(np.int32)[:num] = table.top_k[rows]
        staged = torch.from_numpy(columns).pin_memory().to(logits.device, non_blocking=True)
        filters = DeviceFilters(staged[5, :num].view(torch.int32), staged[3, :num], staged[4, :num])
        return draw_on_device(logits[:num], staged[2, :num], filters, staged[:2].view(-1).view(torch.float64)[:num])

    def _windows(self, wanted: Wanted) -> list[Window]:
        return [
            Window(transforms, first, num_output, drafts)
            for row, first, num_output, drafts in zip(
                wanted.rows.tolist(), wanted.first, wanted.num_output, wanted.drafts, strict=True
            )
            if (transforms := self._table.transforms[row]) is not None
        ]

    def _commit(self, drawn: list[int], faults: dict[int, str], wanted: Wanted) -> list[Sampled]:
        """The hot loop of verification."""
        decreed = self.decreed(wanted) if wanted.has_drafts else None
        if decreed is not None:
            rows = zip(wanted.first, wanted.drafts, decreed, strict=True)
            committed = [[*drafts[:num_held], drawn[first + num_held]] for first, drafts, num_held in rows]
        else:
            committed = []
            for first, drafts in zip(wanted.first, wanted.drafts, strict=True):
                end = first
                for draft in drafts:
                    if draft != drawn[end]:
                        break
                    end += 1
                committed.append(drawn[first : end + 1])
        if faults:
            rows_left = zip(committed, wanted.first, strict=True)
            return [Sampled(*_before_fault(token_ids, first, faults)) for token_ids, first in rows_left]
        return [Sampled(token_ids, None, None) for token_ids in committed]

    def _keep_raw(self, logits: torch.Tensor, wanted: Wanted) -> RawLogits | None:
        """The logits of rows that want logprobs, before anything changes them."""
        asking = np.flatnonzero(self._table.num_logprobs[wanted.rows] >= 0).tolist()
        if not asking:
            return None
        spans = [(wanted.first[place], len(wanted.drafts[place]) + 1) for place in asking]
        return RawLogits(logits, [position for first, num in spans for position in range(first, first + num)])

    def _with_logprobs(self, sampled: list[Sampled], raw: RawLogits, wanted: Wanted) -> list[Sampled]:
        asked = self._table.num_logprobs[wanted.rows].tolist()
        choices = [
            Choice(first + ahead, token_id, num_top)
            for row, first, num_top in zip(sampled, wanted.first, asked, strict=True)
            if num_top >= 0
            for ahead, token_id in enumerate(row.token_ids)
        ]
        entries = iter(raw.report(choices))
        return [
            row._replace(logprobs=[next(entries) for _ in row.token_ids]) if num_top >= 0 else row
            for row, num_top in zip(sampled, asked, strict=True)
        ]


def most_likely(logits: torch.Tensor) -> Likely:
    """The most likely token of each position and its logit."""
    if logits.device.type != "cpu":
        return Likely(*most_likely_on_device(logits))
    # numpy's argmax is several times faster than torch's on a CPU.
    array = logits.numpy()
    tokens = array.argmax(-1)
    return Likely(torch.from_numpy(tokens), torch.from_numpy(array[np.arange(len(tokens)), tokens]))


def _faults(values: npt.NDArray[np.float32]) -> dict[int, str]:
    """Positions whose largest logit is not finite; NaN anywhere counts as the largest."""
    return dict.fromkeys(np.flatnonzero(~np.isfinite(values)).tolist(), NOT_FINITE)


def _before_fault(token_ids: list[int], first: int, faults: dict[int, str]) -> tuple[list[int], None, str | None]:
    """Cut a row's tokens before a position that failed; it fails itself only when nothing is left.

    What came before the fault is good, and the next step meets the fault again: the same tokens as without drafts.
    """
    for ahead in range(len(token_ids)):
        if first + ahead in faults:
            return token_ids[:ahead], None, faults[first] if ahead == 0 else None
    return token_ids, None, None
