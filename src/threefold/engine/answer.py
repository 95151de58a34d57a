"""One answer at the text edge: the engine's deltas in, pieces ready to be shown out.

No process, no event loop: the server's client and the offline `LLM` use it alike.
"""

from __future__ import annotations

from threefold.engine.outputs import OutputDelta
from threefold.request import FinishReason, SamplingParams
from threefold.step import TokenDelta
from threefold.text.answer import AnswerText
from threefold.text.detokenizer import TokenDecoder


class Answer:
    """Turns one answer's token deltas into output deltas until it ends.

    Attributes:
        index: which of the request's n answers.
        finish_reason: why it ended, None as long as it runs. It may end here before the engine knows, by a stop string.
    """

    __slots__ = ("_stop_token_ids", "_text", "finish_reason", "index")

    def __init__(self, index: int, tokenizer: TokenDecoder, params: SamplingParams) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        self._text = AnswerText(tokenizer, params)
        self._stop_token_ids = params.stop_token_ids

    def push(self, token_ids: list[int], num_drafted: int = 0, num_accepted: int = 0) -> OutputDelta:
        """Tokens of a step that brought nothing else."""
        piece = self._text.push(token_ids)
        output = OutputDelta(self.index, piece.text, token_ids, num_drafted=num_drafted, num_accepted=num_accepted)
        if piece.stop is not None:
            self._end_by_string(output, piece.stop, piece.num_tokens)
        return output

    def push_delta(self, delta: TokenDelta) -> OutputDelta:
        """Whatever a step brought."""
        piece = self._text.push(delta.token_ids, delta.finish_reason)
        output = OutputDelta(
            self.index,
            piece.text,
            delta.token_ids,
            delta.logprobs,
            delta.prompt_logprobs,
            num_cached_tokens=delta.num_cached_tokens,
            num_drafted=delta.num_drafted,
            num_accepted=delta.num_accepted,
            queue_s=delta.queue_s,
        )
        if piece.stop is not None:
            self._end_by_string(output, piece.stop, piece.num_tokens)
        elif delta.finish_reason is not None:
            self.finish_reason = output.finish_reason = delta.finish_reason
            if delta.stop_token_id in self._stop_token_ids:
                output.stop_reason = delta.stop_token_id
        return output

    def end(self, finish_reason: FinishReason) -> OutputDelta:
        """End it from here, giving the text that was held back."""
        piece = self._text.push([], finish_reason)
        self.finish_reason = finish_reason
        return OutputDelta(self.index, piece.text, finish_reason=finish_reason)

    def _end_by_string(self, output: OutputDelta, stop: str, num_tokens: int) -> None:
        """The tokens behind the one that completed the stop string are not the answer's."""
        self.finish_reason = output.finish_reason = FinishReason.STOP
        output.stop_reason = stop
        output.token_ids = output.token_ids[:num_tokens]
        if output.logprobs is not None:
            output.logprobs = output.logprobs[:num_tokens]


def merge(into: OutputDelta, later: OutputDelta) -> None:
    """Append a later piece of the same answer."""
    into.text += later.text
    into.token_ids += later.token_ids
    if later.logprobs is not None:
        into.logprobs = (into.logprobs or []) + later.logprobs
    if later.prompt_logprobs is not None:
        into.prompt_logprobs = (into.prompt_logprobs or []) + later.prompt_logprobs
    into.finish_reason = later.finish_reason
    into.stop_reason = later.stop_reason
    into.num_cached_tokens = max(into.num_cached_tokens, later.num_cached_tokens)
    into.num_drafted += later.num_drafted
    into.num_accepted += later.num_accepted
    if into.queue_s is None:
        into.queue_s = later.queue_s
