"""Flags of `threefold quantize`, and what they come to. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from threefold.flags.flag import Flag
from threefold.flags.table import DEVICE_FLAGS, MODEL_FLAGS
from threefold.flags.usage import Group
from threefold.flags.values import choice, integer, seed, switch, text

SCHEMES = ("fp8", "awq")
DEFAULT_CALIBRATION_TOKENS = 65536
DEFAULT_CHECK_TOKENS = 16384
DEFAULT_WINDOW = 512


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What is written, and from what."""

    scheme: str | None = None
    """fp8 or awq."""
    calibration: str | None = None
    """Text of the kind that the model will be asked."""
    output: str | None = None
    """Folder for the checkpoint."""
    calibration_tokens: int = DEFAULT_CALIBRATION_TOKENS
    """Tokens of it that are run through the model (awq)."""
    window: int = DEFAULT_WINDOW
    """Longer texts are cut into pieces of so many tokens."""
    has_check: bool = True
    """Compare the result with the model on held-out text."""
    check_tokens: int = DEFAULT_CHECK_TOKENS
    """Tokens of held-out text."""
    seed: int = 0
    """Of the texts picked."""


QUANTIZE_FLAGS = (
    Flag("scheme", "quantize.scheme", choice(*SCHEMES),
         "fp8: 8-bit weights and activations, no calibration; awq: 4-bit weights, by llm-compressor (extra: quantize)",
         metavar="SCHEME"),
    Flag("calibration", "quantize.calibration", text,
         "text of the kind that the model will be asked: plain, or JSON lines as for `threefold quality`; a fifth is "
         "held out for the check at the end", metavar="FILE"),
    Flag("output", "quantize.output", text, "folder for the checkpoint, new or empty", aliases=("-o",), metavar="DIR"),
    Flag("calibration-tokens", "quantize.calibration_tokens", integer(64),
         f"tokens run through the model for awq ({DEFAULT_CALIBRATION_TOKENS:,})", metavar="N"),
    Flag("window", "quantize.window", integer(16), f"longer texts are cut into pieces of so many ({DEFAULT_WINDOW})",
         metavar="TOKENS"),
    Flag("check", "quantize.has_check", switch, "compare the result with the model on held-out text (on)",
         kind="switch"),
    Flag("check-tokens", "quantize.check_tokens", integer(64), f"tokens of that text ({DEFAULT_CHECK_TOKENS:,})",
         metavar="N"),
    Flag("data-seed", "quantize.seed", seed, "of the texts picked (0)", metavar="N"),
)  # fmt: skip
MODEL_AND_DEVICE = tuple(flag for flag in MODEL_FLAGS if flag.name in ("model", "revision")) + DEVICE_FLAGS
QUANTIZE_GROUPS: tuple[Group, ...] = (("Quantisation", QUANTIZE_FLAGS), ("Model and device", MODEL_AND_DEVICE))
