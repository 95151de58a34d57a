"""What the engine hands to its users: pieces of answers, ready to be shown, and what the engine is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    queue_s: float | None = None
    """Time from arrival to first being scheduled; on the answer's first piece."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine that stands is and can: set once at start, plain data."""

    model: str
    """The model as it was named."""
    max_model_len: int
    """Most tokens a request may have, prompt and answer."""
    vocab_size: int
    """Token ids are below this."""
    served_model_names: tuple[str, ...] = ()
    """Names the API answers to, the first one shown."""
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer unless the request ignores them."""
    num_blocks: int = 0
    """KV blocks."""
    block_size: int = 16
    """Tokens a block."""
    max_num_seqs: int = 256
    """Most requests that run at once."""
    max_num_queued_reqs: int = 1024
    """Most requests that may wait besides."""
    seed: int = 0
    """Seed of the source from which requests without one draw theirs."""
    default_sampling: dict[str, float] = field(default_factory=dict)
    """Sampling defaults of the model (temperature, top_p, …), for requests that say nothing."""
    notes: tuple[str, ...] = ()
    """Start-up lines: what was chosen and why."""
    tokenizer: dict[str, Any] = field(default_factory=dict)
    """What the tokenizer is built from in another process: plain data."""
