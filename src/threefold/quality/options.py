"""Flags of `threefold quality`, and what they come to. Runs nothing.

Each setting that may differ between the two models is the engine's own flag with -a or -b behind its name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from threefold.flags.flag import Flag
from threefold.flags.table import CACHE_FLAGS, DEVICE_FLAGS, MODEL_FLAGS
from threefold.flags.usage import Group
from threefold.flags.values import integer, output_file, seed, switch, text

DEFAULT_MAX_TOKENS = 16384
DEFAULT_WINDOW = 2048


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """What is read, and where results go."""

    data: str | None = None
    """The text."""
    max_tokens: int = DEFAULT_MAX_TOKENS
    """Tokens of it that are read."""
    window: int = DEFAULT_WINDOW
    """Longer texts are cut into pieces of so many tokens."""
    is_in_turn: bool = False
    """Never hold both models at once."""
    seed: int = 0
    """Of the texts picked, and of the intervals."""
    json: str | None = None
    """File for the figures."""


QUALITY_FLAGS = (
    Flag("data", "quality.data", text,
         "the text: plain, or JSON lines with text, prompt and output, messages, conversations, or request and "
         "response; answers are judged where there are any", aliases=("--dataset",), metavar="FILE"),
    Flag("max-tokens", "quality.max_tokens", integer(2), f"tokens of it that are read ({DEFAULT_MAX_TOKENS:,})",
         metavar="N"),
    Flag("window", "quality.window", integer(2), f"longer texts are cut into pieces of so many ({DEFAULT_WINDOW:,})",
         metavar="TOKENS"),
    Flag("one-at-a-time", "quality.is_in_turn", switch,
         "never hold both models at once: the divergence is then a lower bound", kind="switch"),
    Flag("data-seed", "quality.seed", seed, "of the texts picked and of the intervals (0)", metavar="N"),
    Flag("json", "quality.json", output_file, "write all figures there; `advise --quality` reads them", metavar="FILE"),
)  # fmt: skip

_OF_A_SIDE = ("dtype", "quantization", "quantize-embeddings", "load-format", "kv-cache-dtype")
_OF_BOTH = (*_OF_A_SIDE, "tokenizer", "revision", "seed", "block-size", "gpu-memory-utilization")
BOTH_FLAGS = tuple(flag for flag in MODEL_FLAGS + CACHE_FLAGS if flag.name in _OF_BOTH) + DEVICE_FLAGS


def _of_side(side: str) -> tuple[Flag, ...]:
    """The engine's flags for one of the two; `model.dtype` becomes `model_a.dtype`."""
    return tuple(
        replace(
            flag,
            name=f"{flag.name}-{side}",
            field=flag.field.replace(".", f"_{side}.", 1),
            help=f"{flag.name} of {side.upper()} alone",
            aliases=(),
        )
        for flag in BOTH_FLAGS
        if flag.name in _OF_A_SIDE
    )


SIDE_FLAGS = _of_side("a") + _of_side("b")
QUALITY_GROUPS: tuple[Group, ...] = (
    ("Comparison", QUALITY_FLAGS),
    ("Of one of the two", SIDE_FLAGS),
    ("Of both", BOTH_FLAGS),
)
