"""What was asked and how far it has come.

`SamplingParams` is the user's wish, checked once, here, whatever door it came in by. `Request` is the engine's record
of one answer from arrival to end; it knows token ids only. Text (stop strings, detokenising) belongs to the client.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from threefold.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_N = 16
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 256
MAX_BAD_WORDS = 128
MAX_LOGIT_BIAS = 1024
_SEQUENCES = ("stop", "bad_words", "stop_token_ids", "allowed_token_ids")


class FinishReason(enum.StrEnum):
    """Why a request ended; the values are those of the OpenAI API and of vLLM's metrics."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(enum.IntEnum):
    """Where a request stands; it only moves WAITING -> RUNNING -> FINISHED, or back to WAITING by preemption."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


def _require(ok: bool, param: str, message: str, *values: object) -> None:
    """Raise where it does not hold; only then is the message put together, for this runs with every request."""
    if not ok:
        raise InvalidRequestError(message.format(*values), param=param)


def _check_number(name: str, value: float, low: float, high: float) -> None:
    is_fine = math.isfinite(value) and low <= value <= high
    _require(is_fine, name, "{} must be between {:g} and {:g}, got {}", name, low, high, value)


def check_prompt_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequestError if one of at least one token id lies outside [0, vocab_size)."""
    try:
        packed = struct.pack(f"{len(token_ids)}q", *token_ids)
        # A quarter of the time of min and max; read as unsigned, what is negative is beyond every vocabulary.
        is_fine = bool(np.frombuffer(packed, dtype=np.uint64).max() < vocab_size)
    except struct.error:  # not all are whole numbers of 64 bits
        is_fine = min(token_ids) >= 0 and max(token_ids) < vocab_size
    if not is_fine:
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequestError(f"token id {wrong} is outside the vocabulary of {vocab_size}", param="prompt")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens and when to stop.

    The defaults are those of the OpenAI API (temperature 1, no truncation). Raises InvalidRequestError, naming the
    field, when a value is out of range.
    """

    n: int = 1
    """Answers wanted for one prompt, 1 to 16."""
    max_tokens: int | None = 16
    """Most tokens to generate; None = as many as the context holds."""
    min_tokens: int = 0
    """Tokens to generate before an end-of-sequence or stop token may end the answer."""
    temperature: float = 1.0
    """0 = greedy."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this, (0, 1]."""
    top_k: int = 0
    """Keep this many tokens; 0 or -1 = all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one, [0, 1]."""
    repetition_penalty: float = 1.0
    """Divide (multiply) positive (negative) logits of tokens seen in prompt or output, > 0."""
    frequency_penalty: float = 0.0
    """Subtract this for every time a token occurred in the output, [-2, 2]."""
    presence_penalty: float = 0.0
    """Subtract this once if a token occurred in the output, [-2, 2]."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, each in [-100, 100]."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these may be generated; None = all."""
    bad_words: tuple[str, ...] = ()
    """Texts that may not be generated."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """The same as token ids; filled by the client that owns the tokenizer."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; searched by the client, the engine knows no text."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer."""
    include_stop_str_in_output: bool = False
    """Keep the stop text in the answer."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""
    logprobs: int | None = None
    """Log-probabilities of the token and of this many most likely ones; None = none, 0 = the token's own."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    seed: int | None = None
    """Makes sampling repeatable for this request, whatever runs beside it; None = drawn at arrival."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    max_draft_tokens: int | None = None
    """Most draft tokens a step for this request; 0 = no speculation, None = as the engine decides."""

    def __post_init__(self) -> None:
        for name in _SEQUENCES:
            if type(getattr(self, name)) is not tuple:
                self._settle(name)
        _require(1 <= self.n <= MAX_N, "n", "n must be between 1 and {}, got {}", MAX_N, self.n)
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", "max_tokens must be at least 1, got {}", self.max_tokens)
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                "min_tokens ({}) must not exceed max_tokens ({})",
                self.min_tokens,
                self.max_tokens,
            )
        _require(self.min_tokens >= 0, "min_tokens", "min_tokens must be at least 0, got {}", self.min_tokens)
        _check_number("temperature", self.temperature, 0.0, 100.0)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _require(self.top_p > 0, "top_p", "top_p must be greater than 0")
        _require(self.top_k >= -1, "top_k", "top_k must be -1, 0 or positive, got {}", self.top_k)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, 1e6)
        _require(self.repetition_penalty > 0, "repetition_penalty", "repetition_penalty must be greater than 0")
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require(len(self.logit_bias) <= MAX_LOGIT_BIAS, "logit_bias", "at most {} biased tokens", MAX_LOGIT_BIAS)
        for bias in self.logit_bias.values():
            _check_number("logit_bias", bias, -100.0, 100.0)
        _require(len(self.stop) <= MAX_STOP_STRINGS, "stop", "at most {} stop strings", MAX_STOP_STRINGS)
        for string in self.stop:
            _require(0 < len(string) <= MAX_STOP_CHARS, "stop", "stop strings have 1 to {} chars", MAX_STOP_CHARS)
        _require(len(self.bad_words) <= MAX_BAD_WORDS, "bad_words", "at most {} bad words", MAX_BAD_WORDS)
        _require(all(self.bad_words), "bad_words", "bad words must not be empty")
        _require(self.allowed_token_ids != (), "allowed_token_ids", "allowed_token_ids must not be empty")
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            is_fine = value is None or 0 <= value <= MAX_LOGPROBS
            _require(is_fine, name, "{} must be between 0 and {}", name, MAX_LOGPROBS)
        _require(
            self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "seed must fit into a signed 64-bit integer"
        )
        _require(
            self.max_draft_tokens is None or self.max_draft_tokens >= 0,
            "speculation",
            "max_tokens must not be negative",
        )

    def _settle(self, name: str) -> None:
        """A list as the tuple it means, and a single text as one text rather than its letters."""
        value = getattr(self, name)
        if value is not None:
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def reads_history(self) -> bool:
        """True when the output so far changes what may come next."""
        has_penalty = self.frequency_penalty != 0.0 or self.presence_penalty != 0.0 or self.repetition_penalty != 1.0
        return has_penalty or bool(self.bad_words_token_ids)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequestError if a token id named anywhere lies outside [0, vocab_size)."""
        named: list[tuple[str, tuple[int, ...]]] = [
            ("logit_bias", tuple(self.logit_bias)),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
            *(("bad_words", ids) for ids in self.bad_words_token_ids),
        ]
        for name, ids in named:
            for token_id in ids:
                is_fine = 0 <= token_id < vocab_size
                _require(is_fine, name, "token id {} is outside the vocabulary of {}", token_id, vocab_size)


class Request:
    """One answer being made: the prompt, the tokens so far, and where it stands.

        token_ids    [ prompt ............ | output ........ ]
                     0        num_prompt_tokens        num_tokens
        num_computed [ KV valid ............... )              never beyond num_tokens

    Attributes:
        request_id: small integer, unique for the engine's life; the only name the tensor side knows.
        token_ids: prompt and committed output.
        num_computed: tokens whose KV is in the cache.
        block_ids: KV blocks held, in order; the cache manager alone changes it.
        block_hashes: chained hashes of the full blocks known so far; the cache manager alone changes it.
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        max_total_tokens: prompt and output tokens at which the request ends by length.
        end_token_ids: tokens that end it (end of sequence unless ignored, and the request's stop tokens).
        priority: smaller runs first under the priority policy.
        cache_salt: requests with different salts never share cached blocks.
    """

    __slots__ = (
        "arrival_s",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "end_token_ids",
        "finish_reason",
        "first_scheduled_s",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_prompt_tokens",
        "params",
        "priority",
        "request_id",
        "status",
        "stop_token_id",
        "token_ids",
    )

    def __init__(
        self,
        request_id: int,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        max_total_tokens: int,
        end_token_ids: frozenset[int],
        arrival_s: float = 0.0,
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.max_total_tokens = max_total_tokens
        self.end_token_ids = end_token_ids
        self.arrival_s = arrival_s
        self.priority = priority
        self.cache_salt = cache_salt
        self.num_computed = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_token_id: int | None = None
        self.first_scheduled_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and committed output tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """True once it has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status.name}, computed {self.num_computed} of {self.num_tokens}, "
            f"{len(self.block_ids)} blocks)"
        )
