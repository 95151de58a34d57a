"""Captured graphs: a step's hundreds of kernels launched as one, wherever launching would take longer than working.

A graph is captured for a number of tokens, not of rows, so ragged drafts need no padding to a rectangle; the step is
padded up to the next number that has one. Three classes: one new token a row, up to so many as drafts may make of it,
and any number, for steps with prompts, of which each row wants one token's logits at most.
All graphs share one pool of memory, the largest is captured first, and the logits, which would fill it, lie outside. In
a graph are the forward pass, the logits, the most likely tokens, and the note of each row's last token; what single
requests wish for beyond that runs behind it, on its logits.

    arrays ─► staging buffer (one copy) ─► graph: batch ─► hidden ─► logits ─► most likely ─► last tokens, packed

Knows nothing about plans or requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

from threefold.kernels.argmax import note_most_likely
from threefold.runner.forward import DeviceRows, Forward, Pass, next_size, staged_batch
from threefold.runner.inputs import StepArrays
from threefold.runner.readback import Mark
from threefold.runner.runner import ModelRunner
from threefold.runner.staging import StagedShape, Staging
from threefold.sample.sampler import Likely

MAX_LOGITS_BYTES = 512 * 1024**2
"""Room for logits, which bounds the number of tokens; a step with more runs without a graph."""
GRAPH_BYTES = 4 * 1024**2
"""What a graph of some hundred kernels takes for itself."""
_SPANS = ((1, 1, 2), (4, 4, 16), (32, 8, 64), (80, 16, 128), (160, 32, 256), (320, 64, 512), (640, 128, 2048))
"""(first, gap, last) numbers of tokens that get a graph: close together where a step is short."""
_PROMPT_SPANS = ((16, 16, 32), (64, 64, 384), (512, 64, 640), (768, 128, 2048))
"""The same of steps with prompts. Products are worked off in tiles of 64 to 128 tokens: what a step has less costs as
much. Up to 640 steps are closer together, for one prompt of 512 tokens beside a few rows is what is met most."""


class Capture(Protocol):
    """Records device work so that it can be launched again at once: CUDA's graphs, or a fake.

    The first launch of a record takes the host longer than those that follow: whoever captures makes it.
    """

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work once to warm it up, record it, return what launches it again."""

    def end(self) -> int:
        """All is recorded: give back what warming up took. Returns the bytes that recorded work holds."""


class CudaCapture:
    """CUDA graphs with one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._reserved_bytes = torch.cuda.memory_reserved(device)

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture on a stream of its own; torch.cuda.graph would also collect garbage and empty caches each time."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._stream):
            work()
            self._stream.synchronize()
            graph.capture_begin(pool=self._pool)
            work()
            graph.capture_end()
        return graph.replay

    def end(self) -> int:
        """What torch has taken from the card since before the first capture."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device) - self._reserved_bytes


class NoCapture:
    """In place of graphs where none are wanted: kernels are launched one by one, every time."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself; whoever launches it for the first time warms it up."""
        return torch.inference_mode()(work)

    def end(self) -> int:
        """Nothing is held."""
        return 0


def make_cuda_mark() -> Mark:
    """A mark in the current stream; torch.cuda.Event would take four times as long to find that stream."""
    return torch.Event("cuda", enable_timing=True)


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """What bounds the steps that graphs are captured for."""

    max_rows: int
    """Most rows of a step."""
    max_draft: int
    """Most drafts a row."""
    max_context: int
    """Most tokens of a row."""
    vocab_size: int
    max_prompt_tokens: int = 0
    """Most tokens of a step with prompts that gets a graph."""

    @property
    def prompt_sizes(self) -> list[int]:
        """The numbers of tokens of steps with prompts that get a graph, ascending."""
        return [size for size in _sizes_of(_PROMPT_SPANS) if size <= self.max_prompt_tokens]

    @property
    def row_sizes(self) -> list[int]:
        """The numbers of tokens that get a graph where each row has one, ascending."""
        return [size for i, size in enumerate(self.sizes) if i == 0 or self.sizes[i - 1] < self.max_rows]

    @property
    def sizes(self) -> list[int]:
        """The numbers of tokens that get a graph where there are no prompts, ascending; the last is the first that any
        such step fits in.
        """
        most_logits = max(MAX_LOGITS_BYTES // (4 * self.vocab_size), 1)
        sizes = [size for size in _sizes_of(_SPANS) if size <= most_logits]
        return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < self.max_rows * (1 + self.max_draft)]


def _sizes_of(spans: tuple[tuple[int, int, int], ...]) -> list[int]:
    return [size for first, gap, last in spans for size in range(first, last + 1, gap)]


def expected_bytes(limits: GraphLimits, token_bytes: int, *, has_rounds: bool = False, is_eager: bool = False) -> int:
    """Memory that the graphs will hold, give or take: logits in two forms, the largest step, the graphs themselves.

    Args:
        limits: which graphs.
        token_bytes: what one token of a step holds at most.
        has_rounds: the model drafts, and has graphs for that, two for each number of rows.
        is_eager: no graph is captured; logits have their place all the same.
    """
    logits_bytes = limits.sizes[-1] * 8 * limits.vocab_size
    if is_eager:
        return logits_bytes
    num_graphs = 2 * len(limits.row_sizes) if has_rounds else 0
    num_graphs += len(limits.sizes) * (2 if limits.max_draft else 1) + len(limits.prompt_sizes)
    step_bytes = max([*limits.sizes, *limits.prompt_sizes]) * token_bytes
    return logits_bytes + step_bytes + num_graphs * GRAPH_BYTES


class GraphReport(NamedTuple):
    """What capturing took."""

    num_graphs: int
    max_tokens: int
    """Largest step that has a graph."""
    seconds: float
    num_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.num_graphs}, for steps of up to {self.max_tokens} tokens: "
            f"{self.seconds:.1f} s, {self.num_bytes / 1024**2:.0f} MiB"
        )


class _Key(NamedTuple):
    num_tokens: int
    max_new: int
    has_prompts: bool = False


@dataclass(slots=True)
class _Left:
    """What a graph leaves in its own memory; it stays where it is from replay to replay."""

    keep_rows: torch.Tensor  # [num_logits] int64
    likely: Likely  # [num_logits]
    passes: dict[int, Pass] = field(default_factory=dict)  # the same as steps see it, by the logits that they want


class GraphForward:
    """Replays the graph of a step where there is one; other steps run as they are.

    Args:
        runner: the model.
        staging: where steps are written.
        device_rows: what the device keeps of each row.
        eager: runs the other steps.
        limits: which graphs to capture.
    """

    def __init__(
        self, runner: ModelRunner, staging: Staging, device_rows: DeviceRows, eager: Forward, limits: GraphLimits
    ) -> None:
        self._runner = runner
        self._staging = staging
        self._device_rows = device_rows
        self._eager = eager
        self._limits = limits
        self._sizes, self._prompt_sizes = limits.sizes, limits.prompt_sizes
        self._graphs: dict[_Key, Callable[[], None]] = {}
        self._left: dict[_Key, _Left] = {}
        self._shapes: dict[_Key, StagedShape] = {}
        device = device_rows.tokens.device
        self._logits = torch.empty(self._sizes[-1], limits.vocab_size, dtype=torch.float32, device=device)

    @torch.inference_mode()
    def capture(self, capture: Capture) -> GraphReport:
        """Capture all graphs, the largest first, each over a step of padding that touches nothing."""
        began_s = time.perf_counter()
        for key in sorted(self._keys(), reverse=True):
            shape = self._shapes[key] = self._shape(key)
            self._staging.put_padding(shape)
            self._graphs[key] = capture(lambda key=key: self._work(key))  # type: ignore[misc]
            self._graphs[key]()
        num_bytes = capture.end()
        most_tokens = max(key.num_tokens for key in self._graphs)
        return GraphReport(len(self._graphs), most_tokens, time.perf_counter() - began_s, num_bytes)

    def run(self, arrays: StepArrays, num_wanted: int) -> Pass:
        """Launch a pass."""
        key = self._key(arrays)
        replay, num_logits = self._graphs.get(key), len(arrays.logit_tokens)
        if replay is None or num_wanted < num_logits or num_logits > (shape := self._shapes[key]).num_logits:
            return self._eager.run(arrays, num_wanted)
        self._staging.put(arrays, shape, self._device_rows.grow)
        replay()
        left = self._left[key]
        found = left.passes.get(num_wanted)
        if found is None:
            found = left.passes[num_wanted] = self._pass(left, num_wanted)
        return found

    def _pass(self, left: _Left, num_wanted: int) -> Pass:
        """What a graph leaves, as far as it is wanted."""
        tokens, values, packed = left.likely
        logits = self._logits[:num_wanted] if num_wanted else None
        likely = Likely(tokens[:num_wanted], values[:num_wanted], packed)
        return Pass(None, logits, left.keep_rows[:num_wanted], likely)

    def _keys(self) -> list[_Key]:
        """One token a row as far as rows go; with drafts as far as there is room; with prompts as far as it pays."""
        keys = [_Key(size, 1) for size in self._limits.row_sizes]
        if self._limits.max_draft:
            keys += [_Key(size, 1 + self._limits.max_draft) for size in self._sizes if size > 1]
        return keys + [_Key(size, size, has_prompts=True) for size in self._prompt_sizes]

    def _key(self, arrays: StepArrays) -> _Key:
        """The graph that would fit a step."""
        num_tokens, most_drafted = len(arrays.token_ids), 1 + self._limits.max_draft
        if arrays.max_new > most_drafted:
            size = next_size(num_tokens, self._prompt_sizes)
            return _Key(size, size, has_prompts=True)
        return _Key(next_size(num_tokens, self._sizes), most_drafted if arrays.max_new > 1 else arrays.max_new)

    def _shape(self, key: _Key) -> StagedShape:
        num_rows = min(key.num_tokens, self._limits.max_rows)
        num_logits = min(num_rows, self._sizes[-1]) if key.has_prompts else key.num_tokens
        return StagedShape(key.num_tokens, num_rows, num_logits)

    def _work(self, key: _Key) -> None:
        """All that a graph does."""
        shape = self._shape(key)
        views = self._staging.views(shape)
        batch, keep_rows = staged_batch(views, self._device_rows, key.max_new, self._limits.max_context)
        hidden = self._runner.forward(batch)
        logits = self._runner.logits(hidden, self._logits[: shape.num_logits])
        likely = Likely(*note_most_likely(logits, keep_rows, self._device_rows.tokens))
        self._left[key] = _Left(keep_rows, likely)
