"""One answer's text: ids in, text to show out, stop strings obeyed.

Joins the detokenizer and the stop strings for one answer; knows nothing about processes, so that the server's client
and the offline `LLM` share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from threefold.request import FinishReason, SamplingParams
from threefold.text.detokenizer import TokenDecoder, make_detokenizer
from threefold.text.stops import StopFinder


class TextPiece(NamedTuple):
    """What some tokens added to an answer."""

    text: str
    """To show now."""
    num_tokens: int
    """How many of the tokens belong to the answer; fewer than were pushed when a stop string ended it among them."""
    stop: str | None = None
    """The stop string that ended the answer."""


class AnswerText:
    """Turns one answer's tokens into text, and says when a stop string ends it.

    Stop strings count only in the text of tokens after the first `min_tokens`. The token by which the engine stopped
    shows no text unless `include_stop_str_in_output` is set.
    """

    __slots__ = ("_detokenizer", "_finder", "_is_stop_included", "_min_tokens", "_num_tokens")

    def __init__(self, tokenizer: TokenDecoder, params: SamplingParams) -> None:
        self._detokenizer = make_detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._is_stop_included = params.include_stop_str_in_output
        self._finder = StopFinder(params.stop, is_included=self._is_stop_included) if params.stop else None
        self._min_tokens = params.min_tokens
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int], finish_reason: FinishReason | None = None) -> TextPiece:
        """Feed the next tokens.

        Args:
            token_ids: new tokens of the answer.
            finish_reason: set when the engine ended the answer with them; STOP means by the last one of them.
        """
        is_hidden = finish_reason is FinishReason.STOP and not self._is_stop_included
        shown = token_ids[:-1] if is_hidden else token_ids
        if self._finder is None:
            text = self._detokenizer.push(shown)
            return TextPiece(text if finish_reason is None else text + self._detokenizer.flush(), len(token_ids))
        piece = self._search(self._finder, shown)
        if piece.stop is None and finish_reason is not None:
            last = self._finder.push(self._detokenizer.flush())
            return TextPiece(piece.text + last.text + self._finder.flush(), len(token_ids), last.stop)
        return piece if piece.stop is not None else TextPiece(piece.text, len(token_ids))

    def _search(self, finder: StopFinder, token_ids: Sequence[int]) -> TextPiece:
        """Push token by token, so that it is known with which one a stop string was complete."""
        text = ""
        for num_pushed, token_id in enumerate(token_ids, start=1):
            piece = self._detokenizer.push((token_id,))
            self._num_tokens += 1
            if self._num_tokens <= self._min_tokens:
                text += piece
                continue
            found = finder.push(piece)
            text += found.text
            if found.stop is not None:
                return TextPiece(text, num_pushed, found.stop)
        return TextPiece(text, len(token_ids))
