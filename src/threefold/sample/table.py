"""The sampling parameters of all rows, as arrays that a step reads at once.

Knows nothing about logits or plans. Written when a row is set up, read every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from threefold.sample.transforms import Transforms, wishes_any
from threefold.step import NewRow

GREEDY_TEMPERATURE = 1e-5
"""Below this a draw is the most likely token: two logits would have to agree to four digits for it to matter."""


class SamplingTable:
    """Per-row parameters; arrays are [max_rows] and indexed by row.

    Attributes:
        temperature: divides the logits, float32.
        top_p: share of probability kept, float32.
        top_k: tokens kept, 0 = all.
        min_p: least share of the most likely token's probability, float32.
        seeds: uint64.
        num_prompt_tokens: where the output begins.
        is_sampled: False where the most likely token is taken.
        is_plain: True where nothing but the most likely token is wanted: no transform, no logprobs.
        num_wishing: rows that are not.
        num_logprobs: most likely tokens to report, -1 = no logprobs at all.
        transforms: a row's wishes about its logits, None = none.
    """

    def __init__(self, max_rows: int) -> None:
        self.temperature = np.ones(max_rows, dtype=np.float32)
        self.top_p = np.ones(max_rows, dtype=np.float32)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.min_p = np.zeros(max_rows, dtype=np.float32)
        self.seeds = np.zeros(max_rows, dtype=np.uint64)
        self.num_prompt_tokens = np.zeros(max_rows, dtype=np.int64)
        self.is_sampled = np.zeros(max_rows, dtype=np.bool_)
        self.is_plain = np.ones(max_rows, dtype=np.bool_)
        self.num_logprobs = np.full(max_rows, -1, dtype=np.int64)
        self.transforms: list[Transforms | None] = [None] * max_rows
        self.num_wishing = 0
        self._num_transforms = 0

    def set(self, row: int, new: NewRow) -> None:
        """Write a new row's parameters."""
        params = new.params
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.top_k[row] = max(params.top_k, 0)
        self.min_p[row] = params.min_p
        self.seeds[row] = np.uint64(new.seed % 2**64)
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        # Everybody who asks for one candidate means the most likely token, so ties are not drawn.
        is_sampled = params.temperature >= GREEDY_TEMPERATURE and params.top_k != 1
        self.is_sampled[row] = is_sampled
        self.num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.clear(row)
        has_transforms = wishes_any(params, new.end_token_ids)
        if has_transforms:
            self.transforms[row] = Transforms(params, new.end_token_ids, new.token_ids, new.num_prompt_tokens)
            self._num_transforms += 1
        if is_sampled or has_transforms or params.logprobs is not None:
            self.is_plain[row] = False
            self.num_wishing += 1

    def clear(self, row: int) -> None:
        """Forget what a row holds beside its array entries."""
        self._num_transforms -= self.transforms[row] is not None
        self.transforms[row] = None
        self.num_wishing -= not self.is_plain[row]
        self.is_plain[row] = True

    def observe_one(self, rows: npt.NDArray[np.int64], token_ids: npt.NDArray[np.int64]) -> None:
        """Each of these rows committed one output token."""
        if self._num_transforms:
            for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
                self.observe(row, (token_id,))

    def observe_many(self, rows: npt.NDArray[np.int64], token_ids: Sequence[Sequence[int]]) -> None:
        """Each of these rows committed output tokens."""
        if self._num_transforms:
            for row, ids in zip(rows.tolist(), token_ids, strict=True):
                self.observe(row, ids)

    def observe(self, row: int, token_ids: Sequence[int]) -> None:
        """A row committed these output tokens."""
        transforms = self.transforms[row]
        if transforms is not None:
            transforms.observe(token_ids)
