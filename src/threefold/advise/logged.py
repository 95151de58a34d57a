"""One request as a log tells it, whatever the log's form. Holds text where the log has text; nothing here is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

BLOCK_TOKENS = 16
"""Tokens a block of a recording's hashes, and of everything that is reckoned in blocks here."""


@dataclass(slots=True)
class LoggedRequest:
    """What was asked, what came back, and when; None = the log does not say."""

    arrival_s: float | None = None
    """Seconds on the log's own clock."""
    messages: list[dict[str, Any]] | None = None
    """A chat, as the API has it."""
    prompt: str | None = None
    """A plain prompt."""
    output: str | None = None
    """The answer's text."""
    prompt_token_ids: list[int] | None = None
    """The prompt as the model read it."""
    output_token_ids: list[int] | None = None
    """The answer as the model wrote it."""
    num_prompt_tokens: int | None = None
    """As the server counted them."""
    num_output_tokens: int | None = None
    """As the server counted them."""
    block_names: list[Any] | None = None
    """Names of the sequence's full blocks, each standing for the whole prefix up to its end."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens a block of `block_names`."""
    pairs: list[int] | None = None
    """Prompt and answer as numbered token pairs (see server/recording.py), for replay without text."""
    temperature: float | None = None
    """0 = greedy."""
    is_structured: bool = False
    """JSON was demanded, or tools were offered."""
    category: str = ""
    """The data set's own word for the kind of request."""
    ttft_ms: float | None = None
    """Time to the first token."""
    e2e_ms: float | None = None
    """Time to the last one."""


class Fault(NamedTuple):
    """A line that could not be used."""

    line: int
    """Counted from 1; in a file that is one JSON list, the item's number."""
    reason: str


@dataclass(slots=True)
class Log:
    """What one or more log files held."""

    requests: list[LoggedRequest]
    """In the order of the files; sorted by arrival when all of them have one."""
    forms: dict[str, int]
    """Lines by the form they were read as."""
    faults: list[Fault]
    """Lines that were passed over."""

    @property
    def has_times(self) -> bool:
        """True when every request has an arrival."""
        return all(request.arrival_s is not None for request in self.requests)
