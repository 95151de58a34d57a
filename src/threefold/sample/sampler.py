"""Logits to committed tokens: transforms, draws, verification of drafts, log-probabilities, each row by its own wishes.

    logits ─► raw copies for logprobs ─► transforms ─► most likely / drawn token at every position ─► accepted prefix

A batch that wants nothing but most likely tokens takes the first arrow to the last: one argmax. Knows nothing about
plans, KV or drafters. One row's fault (logits that are no numbers, nothing left to draw) is that row's alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
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
from threefold.sample.verify import Acceptance, count_committed, prepare
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
    first: IntArray  # [num_rows] index of the row's first logits
    num_output: IntArray  # [num_rows] output tokens before the first one wanted
    num_drafts: IntArray  # [num_rows]
    draft_ids: IntArray  # all drafts, one row's behind the other's

    @property
    def has_drafts(self) -> bool:
        """Whether any row has some."""
        return len(self.draft_ids) > 0

    @property
    def drafts(self) -> list[list[int]]:
        """Row by row."""
        draft_ids = iter(self.draft_ids.tolist())
        return [list(islice(draft_ids, num)) for num in self.num_drafts.tolist()]


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


class Judged(NamedTuple):
    """What all rows came to, column by column: most rows of most steps have a token and nothing else to say."""

    token_ids: list[list[int]]
    """Accepted drafts and one more; empty where the row failed."""
    num_drawn: IntArray | None
    """[num_rows] how many tokens, where all are those drawn from the row's first position on; None = some are not."""
    logprobs: list[list[TokenLogprobs] | None] | None
    """One entry a token where asked; None = no row asked."""
    errors: dict[int, str]
    """Why rows failed, by index."""
    is_sound: bool = True
    """Whether all positions had logits to draw from."""


NOTHING = Judged([], None, None, {})
"""Where no row wants a token."""


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
        prepare()

    def sample(self, logits: torch.Tensor, wanted: Wanted) -> list[Sampled]:
        """Choose and judge at once; arguments and result are theirs."""
        chosen = self.choose(logits, wanted)
        likely = chosen.likely
        token_ids, _, logprobs, errors, _ = self.judge(
            likely.tokens.cpu().numpy(), likely.values.cpu().numpy(), chosen, wanted
        )
        rows = zip(token_ids, logprobs or [None] * len(token_ids), strict=True)
        return [Sampled(ids, entries, errors.get(index)) for index, (ids, entries) in enumerate(rows)]

    def choose(self, logits: torch.Tensor, wanted: Wanted, likely: Likely | None = None) -> Chosen:
        """Draw a token at every position.

        Args:
            logits: [num_positions, vocab] float32; overwritten where requests have wishes about them.
            wanted: whose positions these are.
            likely: the logits' most likely tokens, where they are known already.
        """
        table = self._table
        if not table.num_wishing or table.is_plain[wanted.rows].all():
            return Chosen(likely or most_likely(logits), [], None)
        return self._choose(logits, wanted, likely)

    @torch.inference_mode()
    def _choose(self, logits: torch.Tensor, wanted: Wanted, likely: Likely | None) -> Chosen:
        """As requests wish; what a model gives may be changed in this mode alone."""
        raw = self._keep_raw(logits, wanted)
        windows = self._windows(wanted)
        if windows:
            transform(logits, windows)
            likely = None
        likely = likely or most_likely(logits)
        if self._table.is_sampled[wanted.rows].any():
            likely = Likely(self._draw(logits, wanted, likely), likely.values)
        return Chosen(likely, windows, raw)

    def judge(self, tokens: IntArray, values: npt.NDArray[np.float32], chosen: Chosen, wanted: Wanted) -> Judged:
        """What every row came to, in the order of wanted.rows.

        Args:
            tokens: [num_positions] those drawn.
            values: [num_positions] the largest logits.
            chosen: what `choose` gave.
            wanted: as there.
        """
        counts, is_sound = count_committed(tokens, values, wanted.first, wanted.num_drafts, wanted.draft_ids)
        judged = self._committed(tokens.tolist(), counts, wanted)
        if not is_sound:
            judged = _cut(judged, wanted, self._faults(values, chosen))
        return judged if chosen.raw is None else self._with_logprobs(judged, chosen.raw, wanted)

    def decreed(self, wanted: Wanted) -> IntArray | None:
        """[num_rows] how many drafts hold whatever is drawn; None = drawing decides."""
        return self._acceptance.decreed(wanted.num_drafts, self._table.seeds[wanted.rows], wanted.num_output)

    def has_history(self, rows: IntArray) -> bool:
        """Whether any of these rows wishes something of its logits, for which drafts are its history."""
        table = self._table
        return table.num_wishing > 0 and any(table.transforms[row] is not None for row in rows.tolist())

    def _draw(self, logits: torch.Tensor, wanted: Wanted, likely: Likely) -> torch.Tensor:
        """[num_positions] int64: the most likely tokens, but drawn ones for rows with a temperature."""
        table = self._table
        num_positions = wanted.num_drafts + 1
        rows = np.repeat(wanted.rows, num_positions)
        # first[i] is where row i's positions begin, so this counts 0, 1, 2, ... within each row.
        ahead = np.arange(len(rows)) - np.repeat(wanted.first, num_positions)
        numbers = uniforms(table.seeds[rows], np.repeat(wanted.num_output, num_positions) + ahead)
        if logits.device.type != "cpu":
            return self._draw_on_device(logits, rows, numbers)
        chosen = table.is_sampled[rows]
        chosen[_not_finite(likely.values.numpy())] = False
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
                wanted.rows.tolist(), wanted.first.tolist(), wanted.num_output.tolist(), wanted.drafts, strict=True
            )
            if (transforms := self._table.transforms[row]) is not None
        ]

    def _committed(self, drawn: list[int], counts: IntArray, wanted: Wanted) -> Judged:
        """Given how many tokens each row commits if drawing decides."""
        if not wanted.has_drafts:
            return Judged([[token_id] for token_id in drawn], counts, None, {})
        decreed = self.decreed(wanted)
        if decreed is not None:
            rows = zip(wanted.first.tolist(), wanted.drafts, decreed.tolist(), strict=True)
            return Judged([[*drafts[:num], drawn[first + num]] for first, drafts, num in rows], None, None, {})
        spans = zip(wanted.first.tolist(), counts.tolist(), strict=True)
        return Judged([drawn[first : first + num] for first, num in spans], counts, None, {})

    def _faults(self, values: npt.NDArray[np.float32], chosen: Chosen) -> dict[int, str]:
        """What is wrong, by position."""
        faults = dict.fromkeys(_not_finite(values), NOT_FINITE)
        for window in chosen.windows:
            for position in range(window.first, window.first + len(window.drafts) + 1):
                if values[position] == -np.inf:
                    faults[position] = NOTHING_LEFT
        return faults

    def _keep_raw(self, logits: torch.Tensor, wanted: Wanted) -> RawLogits | None:
        """The logits of rows that want logprobs, before anything changes them."""
        asking = np.flatnonzero(self._table.num_logprobs[wanted.rows] >= 0).tolist()
        if not asking:
            return None
        spans = [(int(wanted.first[place]), int(wanted.num_drafts[place]) + 1) for place in asking]
        return RawLogits(logits, [position for first, num in spans for position in range(first, first + num)])

    def _with_logprobs(self, judged: Judged, raw: RawLogits, wanted: Wanted) -> Judged:
        asked = self._table.num_logprobs[wanted.rows].tolist()
        choices = [
            Choice(first + ahead, token_id, num_top)
            for token_ids, first, num_top in zip(judged.token_ids, wanted.first.tolist(), asked, strict=True)
            if num_top >= 0
            for ahead, token_id in enumerate(token_ids)
        ]
        entries = iter(raw.report(choices))
        return judged._replace(
            logprobs=[
                [next(entries) for _ in token_ids] if num_top >= 0 else None
                for token_ids, num_top in zip(judged.token_ids, asked, strict=True)
            ]
        )


def most_likely(logits: torch.Tensor) -> Likely:
    """The most likely token of each position and its logit."""
    if logits.device.type != "cpu":
        return Likely(*most_likely_on_device(logits))
    # numpy's argmax is several times faster than torch's on a CPU.
    array = logits.numpy()
    tokens = array.argmax(-1)
    return Likely(torch.from_numpy(tokens), torch.from_numpy(array[np.arange(len(tokens)), tokens]))


def _not_finite(values: npt.NDArray[np.float32]) -> list[int]:
    """Positions whose largest logit is not finite; NaN anywhere counts as the largest."""
    positions: list[int] = np.flatnonzero(~np.isfinite(values)).tolist()
    return positions


def _cut(judged: Judged, wanted: Wanted, faults: dict[int, str]) -> Judged:
    """Cut rows' tokens before a position that failed; a row fails itself only when nothing is left.

    What came before the fault is good, and the next step meets the fault again: the same tokens as without drafts.
    """
    errors = {}
    token_ids = []
    for index, (ids, first) in enumerate(zip(judged.token_ids, wanted.first.tolist(), strict=True)):
        num_good = next((ahead for ahead in range(len(ids)) if first + ahead in faults), len(ids))
        token_ids.append(ids[:num_good])
        if num_good == 0:
            errors[index] = faults[first]
    return Judged(token_ids, None, None, errors, is_sound=False)
