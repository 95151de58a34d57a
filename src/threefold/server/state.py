"""What all routes share: the engine's client, the configuration, the measurements, whether the server is leaving."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from threefold.config import ServerConfig
from threefold.errors import NotFoundError, OverloadedError
from threefold.server.call import Client
from threefold.server.chat import ChatPrompts
from threefold.server.prompts import PromptTokenizer
from threefold.server.record import RequestMetrics
from threefold.server.recording import NoRecorder, Recorder
from threefold.server.template import TemplateRenderer

DRAIN_RETRY_S = 5.0


@dataclass(slots=True)
class ServerState:
    """One server's life."""

    client: Client
    """The engine."""
    config: ServerConfig
    """As asked."""
    prompts: PromptTokenizer
    """Text to ids."""
    chats: ChatPrompts
    """Messages to ids."""
    renderer: TemplateRenderer | None
    """The chat template's worker, None when there is no template."""
    metrics: RequestMetrics
    """Measured on this side."""
    recorder: Recorder = field(default_factory=NoRecorder)
    """Writes down what was asked and answered, when that is wanted."""
    started_s: int = field(default_factory=lambda: int(time.time()))
    """Unix time."""
    is_draining: bool = False
    """Set at shutdown: what runs may end, nothing new is taken."""
    num_in_flight: int = 0
    """Calls that run."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds, for tests."""

    @property
    def model_name(self) -> str:
        """The name shown in responses."""
        return self.client.info.served_model_names[0]

    @property
    def is_ready(self) -> bool:
        """True while new calls are taken."""
        return self.client.is_alive and not self.is_draining

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Counts a call while it runs."""
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1

    def check_open(self) -> None:
        """Raise OverloadedError while the server drains."""
        if self.is_draining:
            raise OverloadedError("the server is shutting down", retry_after_s=DRAIN_RETRY_S)

    def check_model(self, name: str | None) -> None:
        """Raise NotFoundError unless the name is one that is served; None = whatever is served."""
        names = self.client.info.served_model_names
        if name is not None and name not in names:
            known = ", ".join(names)
            raise NotFoundError(
                f"the model {name[:200]!r} does not exist; served here: {known}", param="model", code="model_not_found"
            )


def state_of(request: Request) -> ServerState:
    """The state of the server that a request came to."""
    return cast(ServerState, request.app.state.server)
