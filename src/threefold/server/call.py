"""One API call, read and checked, ready to be run: what the routes hand to the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from threefold.engine.outputs import OutputDelta
from threefold.metrics import EngineStats
from threefold.request import SamplingParams
from threefold.server.prompts import TextPrompt


class ModelFacts(Protocol):
    """What the server needs to know of the running engine."""

    @property
    def served_model_names(self) -> Sequence[str]:
        """Names the API answers to; the first is shown."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    def num_blocks(self) -> int:
        """KV blocks."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def default_sampling(self) -> Mapping[str, Any]:
        """The model's own sampling defaults, by SamplingParams' names."""

    @property
    def notes(self) -> Sequence[str]:
        """Start-up lines: what was chosen and why."""


class Pieces(Protocol):
    """The pieces of a request's answers, as engine.client gives them."""

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        """Itself."""

    async def __anext__(self) -> OutputDelta:
        """The next piece."""

    async def aclose(self) -> None:
        """End the request if it still runs."""


class Client(Protocol):
    """What the server needs of engine.client."""

    @property
    def info(self) -> ModelFacts:
        """The running engine."""

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""

    @property
    def is_alive(self) -> bool:
        """False once the engine process is gone."""

    def generate(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
    ) -> Pieces:
        """Start a request; closing its pieces ends it."""

    async def stats(self) -> EngineStats:
        """The engine's counters."""

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes."""


@dataclass(slots=True)
class Call:
    """One API call."""

    response_id: str
    """Shown to the client."""
    created: int
    """Unix time, s."""
    model: str
    """Name shown in the response."""
    endpoint: str
    """For the request log."""
    prompts: list[TextPrompt]
    """One or more; each is answered params.n times."""
    params: SamplingParams
    """How to answer."""
    arrival_s: float
    """time.perf_counter() when the request came in."""
    priority: int = 0
    """Smaller runs first under the priority policy."""
    cache_salt: str = ""
    """Shares cached prefixes only with equal salts."""
    is_stream: bool = False
    """Answer in frames."""
    stream_interval: int = 1
    """Tokens to gather before a frame."""
    wants_usage: bool = False
    """A stream ends with a usage frame."""
    wants_running_usage: bool = False
    """Every frame has the usage so far."""
    wants_token_ids: bool = False
    """Show ids beside text."""
    wants_metrics: bool = False
    """Show timings and acceptance."""
    ignored_fields: list[str] = field(default_factory=list)
    """Unknown fields of the request."""

    @property
    def num_choices(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.params.n

    def prompt_of(self, index: int) -> TextPrompt:
        """The prompt that choice `index` answers; choices of a prompt stand together."""
        return self.prompts[index // self.params.n]


def merged(pieces: Iterable[OutputDelta]) -> OutputDelta:
    """Consecutive pieces of one answer as one piece; at least one is needed."""
    parts = list(pieces)
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    has_logprobs = any(part.logprobs is not None for part in parts)
    return OutputDelta(
        index=first.index,
        text="".join(part.text for part in parts),
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        logprobs=[entry for part in parts for entry in part.logprobs or ()] if has_logprobs else None,
        prompt_logprobs=next((part.prompt_logprobs for part in parts if part.prompt_logprobs is not None), None),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_cached_tokens=max(part.num_cached_tokens for part in parts),
        num_drafted=sum(part.num_drafted for part in parts),
        num_accepted=sum(part.num_accepted for part in parts),
    )


async def gathered(pieces: AsyncIterator[OutputDelta], num_tokens: int) -> AsyncIterator[OutputDelta]:
    """Pieces of at least num_tokens tokens, an answer's first and last piece excepted."""
    held: dict[int, list[OutputDelta]] = {}
    async for piece in pieces:
        is_first = piece.index not in held
        waiting = held.setdefault(piece.index, [])
        waiting.append(piece)
        is_enough = sum(len(one.token_ids) for one in waiting) >= num_tokens
        if is_first or is_enough or piece.finish_reason is not None:
            held[piece.index] = []
            yield merged(waiting)
