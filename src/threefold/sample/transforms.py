"""One row's wishes about its logits, made ready once when the row is set up.

Knows nothing about logits; logits.py applies what stands here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from threefold.request import SamplingParams
from threefold.sample.history import TokenHistory

IntArray = npt.NDArray[np.int64]


def wishes_any(params: SamplingParams, end_token_ids: frozenset[int]) -> bool:
    """False when no logit would ever change, as with most requests: what is made ready below is spared them."""
    return (
        params.reads_history
        or params.allowed_token_ids is not None
        or bool(params.logit_bias)
        or bool(params.min_tokens and end_token_ids)
    )


class Transforms:
    """What changes a row's logits before temperature: masks, biases, bans and penalties.

    Attributes:
        allowed: [n] the only tokens that may be drawn, None = all.
        bias_token_ids: [n] tokens of logit_bias.
        biases: [n] what is added to them.
        end_token_ids: [n] tokens that min_tokens keeps away.
        min_tokens: output tokens before one of end_token_ids may come.
        bad_words: token sequences that the output may not contain.
        output: output tokens so far, kept for bad_words only.
        history: what the penalties count, None when there are none.
    """

    def __init__(
        self, params: SamplingParams, end_token_ids: frozenset[int], token_ids: Sequence[int], num_prompt_tokens: int
    ) -> None:
        allowed = params.allowed_token_ids
        self.allowed = None if allowed is None else np.array(sorted(set(allowed)), dtype=np.int64)
        self.bias_token_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self.biases = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self.end_token_ids = np.array(sorted(end_token_ids), dtype=np.int64)
        self.min_tokens = params.min_tokens if end_token_ids else 0
        self.bad_words = params.bad_words_token_ids
        self.repetition_penalty = params.repetition_penalty
        self.frequency_penalty = params.frequency_penalty
        self.presence_penalty = params.presence_penalty
        self.output: list[int] = []
        has_penalty = (
            params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        self.history = None
        if has_penalty:
            self.history = TokenHistory(np.array(token_ids[:num_prompt_tokens], dtype=np.int32))
        self.observe(token_ids[num_prompt_tokens:])

    def observe(self, token_ids: Sequence[int]) -> None:
        """Take committed output tokens into the history."""
        if self.bad_words:
            self.output.extend(token_ids)
        if self.history is not None:
            for token_id in token_ids:
                self.history.push(token_id)

    def banned(self, num_output: int, drafts: Sequence[int]) -> IntArray:
        """Token ids that may not be drawn after these drafts.

        Args:
            num_output: index of the token being drawn in the output, the drafts before it counted.
            drafts: the drafts before it.
        """
        words = self._completed_words(drafts) if self.bad_words else []
        if num_output >= self.min_tokens:
            return np.array(words, dtype=np.int64)
        return np.concatenate([self.end_token_ids, np.array(words, dtype=np.int64)])

    def _completed_words(self, drafts: Sequence[int]) -> list[int]:
        """The last tokens of those bad words whose other tokens the output ends with."""
        longest = max(len(word) for word in self.bad_words) - 1
        tail = [*self.output[len(self.output) - longest if longest < len(self.output) else 0 :], *drafts]
        return [
            word[-1]
            for word in self.bad_words
            if word and (len(word) == 1 or tuple(tail[-(len(word) - 1) :]) == word[:-1])
        ]
