"""`threefold quantize`: from words to a checkpoint, a quality check and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from threefold.bench.machine import provenance
from threefold.bench.report import say, write_json
from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, fill, parse_command
from threefold.flags.usage import usage
from threefold.quality.words import quality_lines
from threefold.quantize.options import MODEL_AND_DEVICE, QUANTIZE_FLAGS, QUANTIZE_GROUPS, QuantizeOptions

QUALITY_FILE = "threefold-quality.json"
"""In the folder, for `advise --quality`."""


def run_quantize(words: Sequence[str]) -> int:
    """`threefold quantize MODEL --scheme fp8|awq --calibration FILE -o DIR`.

    Raises:
        OperatorError: what was typed cannot hold, the model cannot be quantised, or the folder cannot be written.
    """
    parsed = parse_command(words, QUANTIZE_FLAGS + MODEL_AND_DEVICE)
    if parsed.help_word is not None:
        synopsis = "MODEL --scheme fp8|awq --calibration FILE -o DIR [flags]"
        print(usage("threefold quantize", synopsis, QUANTIZE_GROUPS, parsed.help_word))
        return 0
    asked = fill("quantize", QuantizeOptions(), parsed.assignments)
    if len(parsed.positionals) > 1:
        raise ConfigError(f"one MODEL is quantised, got {len(parsed.positionals)}: {' '.join(parsed.positionals)}")
    config = engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)
    _check(asked)
    where = provenance(["quantize", *words])
    from threefold.quantize.run import quantize

    result = quantize(config, asked, say=say)
    if result is not None:
        print("\n".join(quality_lines(result)))
        write_json(Path(str(asked.output)) / QUALITY_FILE, {**where, **result})
    return 0


def _check(asked: QuantizeOptions) -> None:
    """What must be said, by the scheme."""
    if asked.scheme is None:
        raise ConfigError("--scheme is needed: fp8 (8 bits, no calibration) or awq (4 bits)")
    if asked.output is None:
        raise ConfigError("-o DIR is needed: the folder for the checkpoint")
    if asked.calibration is None and (asked.scheme == "awq" or asked.has_check):
        what = "awq learns from it" if asked.scheme == "awq" else "the check reads it; --no-check leaves that out"
        raise ConfigError(f"--calibration FILE is needed, text of the kind that the model will be asked: {what}")
