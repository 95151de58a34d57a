"""What the text edge hands to its user: pieces of answers, ready to be shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from threefold.request import FinishReason
from threefold.step import TokenLogprobs


@dataclass(slots=True)
class OutputDelta:
    """A piece of one answer. Pieces that wait for a slow reader are merged, so one may carry many tokens."""

    index: int = 0
    """Which of the request's n answers."""
    text: str = ""
    """New text; incomplete characters and possible beginnings of stop strings are held back."""
    token_ids: list[int] = field(default_factory=list)
    """New tokens; their text may come in a later piece."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry a new token, when asked."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """For every prompt token but the first, when asked; on the answer's first piece."""
    finish_reason: FinishReason | None = None
    """Set on the answer's last piece."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for end of sequence and length."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    num_drafted: int = 0
    """Drafts verified for these tokens."""
    num_accepted: int = 0
    """Of them, accepted."""
