"""The body and the path of each request of a load. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from threefold.bench.prompt import Prompt

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What every request of a load has in common."""

    api: str = "chat"
    """chat or completions."""
    model: str = ""
    """The model's name at the server."""
    max_tokens: int = 256
    """Tokens wanted, unless the prompt says."""
    temperature: float = 0.0
    """0 = greedy."""
    ignore_eos: bool = False
    """Go on to max_tokens whatever the model says."""
    seed: int = 0
    """Request i samples with seed + i when the temperature is not 0."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body; they win, and None takes a field away."""
    tokens_per_word: float = 1.0
    """What the server's tokenizer makes of a made-up prompt's words."""

    def path(self, prompt: Prompt) -> str:
        """Where a prompt goes: as the load's API says, unless the data set brings a body of the other."""
        if not prompt.body:
            return PATHS[self.api]
        return PATHS["chat" if "messages" in msgspec.json.decode(prompt.body) else "completions"]

    def body(self, prompt: Prompt, index: int) -> bytes:
        """One request's body."""
        message: dict[str, Any] = {"model": self.model, "temperature": self.temperature, **self.content(prompt)}
        limit = "max_completion_tokens" if "max_completion_tokens" in message else "max_tokens"
        message[limit] = prompt.max_tokens or self.max_tokens
        message["stream"] = True
        message["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            message["ignore_eos"] = True
        if message["temperature"]:
            message.setdefault("seed", self.seed + index)
        message.update(self.extra)
        return msgspec.json.encode({key: value for key, value in message.items() if value is not None})

    def content(self, prompt: Prompt) -> dict[str, Any]:
        """The prompt as messages or text, with what else the data set's body brings."""
        if prompt.body:
            content: dict[str, Any] = msgspec.json.decode(prompt.body)
            return content
        text = prompt.made_up.text(self.tokens_per_word) if prompt.made_up is not None else prompt.text
        if self.api == "chat":
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}
