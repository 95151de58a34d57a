"""Every error Threefold raises on purpose, and who can mend it.

    ThreefoldError
    ├── CallerError                 the client that sent the request: HTTP 4xx
    │   ├── InvalidRequestError     a field is malformed or out of range: 400
    │   │   └── ContextLengthError  prompt (and answer) longer than the model's context: 400
    │   ├── AuthenticationError     missing or wrong API key: 401
    │   ├── NotFoundError           no such model or path: 404
    │   ├── RequestTooLargeError    body over the limit: 413
    │   └── NotSupportedError       well formed, but not built here: 501
    ├── OperatorError               whoever starts the server: one line on stderr, exit code 2
    │   ├── ConfigError             a flag or configuration value cannot hold
    │   ├── ModelLoadError          files missing, truncated, of the wrong shape or kind
    │   ├── MemoryPlanError         the model and its cache do not fit
    │   └── DownloadError           the network or a checksum failed
    ├── OverloadedError             nobody: come back later: HTTP 503 with Retry-After
    ├── StepMemoryError             nobody: the engine runs the step again with less in it
    ├── EngineDeadError             a supervisor, by restarting: HTTP 500, process exit code not 0
    └── RequestFailedError          us: this one request hit a fault inside the engine: HTTP 500

A request's error ends that request and never leaves it.
"""

from __future__ import annotations


class ThreefoldError(Exception):
    """Base of every error raised on purpose."""


class CallerError(ThreefoldError):
    """The client that sent the request can mend it.

    Attributes:
        status: HTTP status code.
        param: the request field at fault, None when it is no single field.
        code: OpenAI's short error code, None where it has none.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class InvalidRequestError(CallerError):
    """A field of the request is malformed or out of range."""


class ContextLengthError(InvalidRequestError):
    """Prompt, or prompt and answer, exceed the model's context."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class AuthenticationError(CallerError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class NotFoundError(CallerError):
    """No such model or path."""

    status = 404
    kind = "not_found_error"


class RequestTooLargeError(CallerError):
    """The body is over the server's limit."""

    status = 413


class NotSupportedError(CallerError):
    """Well formed, but Threefold does not build this."""

    status = 501
    kind = "not_supported_error"


class OperatorError(ThreefoldError):
    """Whoever starts the server or command can mend it; shown as one line, exit code 2."""


class ConfigError(OperatorError):
    """A flag or configuration value cannot hold."""


class ModelLoadError(OperatorError):
    """A model's files are missing, truncated, or of a shape or kind that does not fit."""


class MemoryPlanError(OperatorError):
    """The model and its KV cache do not fit into the memory given."""


class DownloadError(OperatorError):
    """A download failed or what came does not match its checksum."""


class OverloadedError(ThreefoldError):
    """The queue is full or too long for the latency targets; the same request may pass later.

    Attributes:
        retry_after_s: seconds after which trying again is sensible.
        reason: as metrics name it, queue_full or slo.
    """

    def __init__(self, message: str, *, retry_after_s: float = 1.0, reason: str = "queue_full") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class StepMemoryError(ThreefoldError):
    """A step asked the device for memory that is not there; nothing of it happened but that its rows were set up."""


class EngineDeadError(ThreefoldError):
    """The engine process is gone; nothing but a restart brings it back."""


class RequestFailedError(ThreefoldError):
    """One request hit a fault inside the engine; other requests are untouched."""
