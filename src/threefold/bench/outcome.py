"""What one request came to, as times and counts. The same record for a server and for an engine in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class Outcome:
    """One request, measured. Times are seconds of one monotonic clock."""

    start_s: float = 0.0
    """When it was sent."""
    end_s: float = 0.0
    """When it was over, whatever came after its last token included."""
    chunk_times_s: list[float] = field(default_factory=list)
    """When each piece that carried output arrived."""
    prompt_tokens: int = 0
    """As the server counted them."""
    output_tokens: int = 0
    """As the server counted them; pieces are counted when it did not."""
    is_counted: bool = False
    """True when the server said how many tokens it made."""
    cached_tokens: int = 0
    """Prompt tokens that came from the server's prefix cache, when it says."""
    finish_reason: str = ""
    """stop, length …; "" = none came."""
    error: str = ""
    """Why it failed; "" = it did not."""
    category: str = ""
    """The prompt's."""
    due_s: float | None = None
    """When an open loop meant to send it; None = a closed loop, in which a request is due when it is sent."""

    @property
    def ttft_s(self) -> float:
        """Time to the first piece with output."""
        return self.chunk_times_s[0] - self.start_s

    @property
    def latency_s(self) -> float:
        """Time to the last piece with output."""
        return self.chunk_times_s[-1] - self.start_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 when there is but one."""
        if self.output_tokens < 2:
            return 0.0
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (self.output_tokens - 1)

    @property
    def queue_s(self) -> float:
        """Time from when it was due to when the client sent it: waiting for --max-concurrency, or a late client."""
        return 0.0 if self.due_s is None else self.start_s - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Time between pieces (a piece may hold several tokens)."""
        times = self.chunk_times_s
        return [later - earlier for earlier, later in pairwise(times)]
