"""Two models over the same pieces of text: side by side where both fit into memory, else one after the other.

Side by side whole distributions are compared, a few positions at a time. One after the other, the first leaves a sketch
of each distribution behind. Knows nothing about files or tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from threefold.config import EngineConfig
from threefold.errors import MemoryPlanError, ModelLoadError
from threefold.quality.divergence import Compared, Sketch, compare, compare_with_sketch, sketch
from threefold.quality.documents import Piece
from threefold.quality.readings import Readings
from threefold.quality.side import Chunk, Side, load_side

NUM_TOP = 64
"""Tokens of a sketch."""
LEAST_STEP_TOKENS = 512
"""Short texts are fed together up to so many tokens."""
MAX_ROWS = 64

Tell = Callable[[int, Readings | None], None]
"""Told the pieces done and, once there are any, the figures so far."""


class Pair(NamedTuple):
    """What is compared."""

    a: EngineConfig
    b: EngineConfig
    width: int
    """Tokens that both know: the smaller vocabulary, where a padded tail differs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it."""

    readings: Readings
    num_top: int
    """Tokens of the sketches; 0 = whole distributions were compared."""
    is_cut: bool
    """True when Ctrl-C ended it early."""
    duration_s: float
    """Without loading."""


def measure(
    pair: Pair, pieces: Sequence[Piece], *, is_in_turn: bool, tell: Tell, say: Callable[[str], None]
) -> Measured:
    """Read all pieces with both models.

    Args:
        pair: the models.
        pieces: at least one.
        is_in_turn: do not even try to hold both.
        tell: told of progress.
        say: told what is being done, in words.

    Raises:
        OperatorError: a model cannot be loaded, or gives no numbers.
    """
    steps = list(batches(pieces, LEAST_STEP_TOKENS))
    a = _load(pair.a, steps)
    try:
        b = None if is_in_turn else _load(pair.b, steps)
    except MemoryPlanError as error:
        say(f"not both fit into memory at once, so one after the other ({error})")
        b = None
    if b is not None:
        return _collect(steps, _side_by_side(a, b, steps, pair.width), 0, tell)
    say(f"reading with A, keeping its {NUM_TOP} most likely tokens of every position")
    kept = _sketches(a, steps, pair.width, tell)
    a.release()
    say("reading with B")
    return _collect(steps, _against(kept, _load(pair.b, steps), steps, pair.width), NUM_TOP, tell)


def batches(pieces: Sequence[Piece], step_tokens: int) -> Iterator[list[Piece]]:
    """Pieces in their order, together while they have at most step_tokens; a longer one alone."""
    step: list[Piece] = []
    num_tokens = 0
    for piece in pieces:
        if step and (num_tokens + len(piece.token_ids) > step_tokens or len(step) == MAX_ROWS):
            yield step
            step, num_tokens = [], 0
        step.append(piece)
        num_tokens += len(piece.token_ids)
    yield step


def _load(config: EngineConfig, steps: Sequence[Sequence[Piece]]) -> Side:
    lengths = [[len(piece.token_ids) for piece in step] for step in steps]
    return load_side(config, max(map(sum, lengths)), max(map(max, lengths)), MAX_ROWS)


def _side_by_side(a: Side, b: Side, steps: Iterable[list[Piece]], width: int) -> Iterator[list[Compared]]:
    for step in steps:
        both = zip(a.read(step), b.read(step), strict=True)
        yield [compare(_cut(one, width), _cut(other, width), one.targets) for one, other in both]


def _sketches(a: Side, steps: Sequence[list[Piece]], width: int, tell: Tell) -> list[list[Sketch]]:
    kept = []
    num_done = 0
    for step in steps:
        kept.append([sketch(_cut(chunk, width), chunk.targets, NUM_TOP) for chunk in a.read(step)])
        num_done += len(step)
        tell(num_done, None)
    return kept


def _against(
    kept: Sequence[list[Sketch]], b: Side, steps: Sequence[list[Piece]], width: int
) -> Iterator[list[Compared]]:
    for step, sketches in zip(steps, kept, strict=True):
        both = zip(sketches, b.read(step), strict=True)
        yield [compare_with_sketch(known, _cut(chunk, width), chunk.targets) for known, chunk in both]


def _cut(chunk: Chunk, width: int) -> torch.Tensor:
    return chunk.logits[:, :width]


def _collect(steps: Sequence[list[Piece]], compared: Iterator[list[Compared]], num_top: int, tell: Tell) -> Measured:
    """Take the figures of every step in; Ctrl-C leaves what there is."""
    readings = Readings()
    begin_s, num_done, is_cut = time.perf_counter(), 0, False
    try:
        for step, parts in zip(steps, compared, strict=True):
            figures = np.concatenate([torch.stack(list(part)).numpy() for part in parts], axis=1)
            _check_numbers(figures)
            ends = np.cumsum([piece.num_judged for piece in step])[:-1]
            for own in np.split(figures, ends, axis=1):
                readings.add(own)
            num_done += len(step)
            tell(num_done, readings)
    except KeyboardInterrupt:
        if not readings.num_tokens:
            raise
        is_cut = True
    return Measured(readings, num_top, is_cut, time.perf_counter() - begin_s)


def _check_numbers(figures: np.ndarray) -> None:
    for side, row in (("A", 0), ("B", 1)):
        if not np.isfinite(figures[row]).all():
            raise ModelLoadError(
                f"model {side} gives logits that are no numbers: its weights are broken, or overflow in its dtype; "
                f"try --dtype-{side.lower()} bfloat16 or float32"
            )
