"""One quantisation from beginning to end: refuse, pick texts, write beside, put in place, compare.

The folder appears when it is whole: what is not finished lies beside it under another name, and goes with a fault.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from threefold.advise.trace import Encoder
from threefold.config import EngineConfig
from threefold.errors import ConfigError
from threefold.quality.compare import compare_on, open_pair
from threefold.quality.documents import Piece, Sample, cut, read_sample
from threefold.quality.options import QualityOptions
from threefold.quantize.awq import check_can_run, write_awq
from threefold.quantize.fp8 import write_fp8
from threefold.quantize.options import QuantizeOptions
from threefold.quantize.source import Source, check_output, open_source
from threefold.runner.device import open_device
from threefold.text.tokenizer import Tokenizer

HELD_OUT = 5
"""One piece in so many is kept from the calibration, for the check."""

Say = Callable[[str], None]


def quantize(config: EngineConfig, asked: QuantizeOptions, *, say: Say) -> dict[str, Any] | None:
    """Write a quantised checkpoint and compare it with its model.

    Args:
        config: the model and the device.
        asked: scheme, folder and texts.
        say: told what is being done.

    Returns:
        The comparison, as quality.compare gives it; None = none was asked for.

    Raises:
        OperatorError: the model cannot be quantised, or the folder not be written.
    """
    output, scheme = Path(str(asked.output)).expanduser(), str(asked.scheme)
    source = open_source(config.model)
    device = open_device(config.device.device, config.device.num_threads)
    if scheme == "awq":
        check_can_run(device)
        source.group_size()
    needed_bytes = source.result_bytes(scheme)
    check_output(output, needed_bytes)
    sample = _sample(source, asked)
    learned, held_out = _divided(sample, asked, source)
    say(f"writing {output}: {scheme}, about {needed_bytes / 1e9:.2f} GB")
    with _appearing(output) as folder:
        if scheme == "awq":
            size = write_awq(source, folder, learned, device.torch_device)
        else:
            size = write_fp8(source, folder, _tenths(say))
    say(f"{output} is written: {size / 1e9:.2f} GB of weights")
    if sample is None or not asked.has_check:
        return None
    return _compared(config, output, sample, held_out, asked, say)


def _sample(source: Source, asked: QuantizeOptions) -> Sample | None:
    """Texts of the calibration file; None = there is none."""
    if asked.calibration is None:
        return None
    encoder = Encoder(_tokenizer(source))
    return read_sample(Path(asked.calibration), encoder, _num_tokens(asked), asked.seed, "--calibration")


def _num_tokens(asked: QuantizeOptions) -> int:
    """FP8 learns nothing from the text, so all of it may be for the check."""
    learned = asked.calibration_tokens if asked.scheme == "awq" else 0
    return max(learned + (asked.check_tokens if asked.has_check else 0), 2)


def _divided(sample: Sample | None, asked: QuantizeOptions, source: Source) -> tuple[list[Piece], list[Piece]]:
    """Pieces to learn from, and pieces for the check."""
    if sample is None:
        return [], []
    window = min(asked.window, source.checkpoint.spec.max_positions)
    pieces = cut(sample.documents, window, _tokenizer(source).bos_token_id)
    if asked.scheme == "fp8":
        return [], pieces
    learned = [piece for at, piece in enumerate(pieces) if at % HELD_OUT < HELD_OUT - 1]
    held_out = pieces[HELD_OUT - 1 :: HELD_OUT]
    if not held_out and asked.has_check:
        raise ConfigError(
            f"--calibration {asked.calibration}: gives {len(pieces)} pieces of at most {window} tokens, too few to "
            "hold any out for the check; give more text, a smaller --window, or --no-check"
        )
    return (learned, held_out) if asked.has_check else (pieces, [])


def _tokenizer(source: Source) -> Tokenizer:
    return Tokenizer.from_facts(source.checkpoint.plain_tokenizer_facts)


@contextmanager
def _appearing(output: Path) -> Iterator[Path]:
    """A folder to write into that takes its name once all is there.

    Raises:
        ConfigError: it cannot be made.
    """
    unfinished = output.with_name(f"{output.name}.unfinished")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()
    except FileExistsError:
        raise ConfigError(f"{unfinished}: is left from a run that was cut off; remove it first") from None
    except OSError as error:
        raise ConfigError(f"-o {output}: cannot make it: {error.strerror}") from None
    try:
        yield unfinished
        unfinished.replace(output)
    except OSError as error:
        raise ConfigError(f"-o {output}: cannot write it: {error.strerror}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _tenths(say: Say) -> Callable[[int, int], None]:
    """Says so at each tenth of the tensors."""

    def tell(num_done: int, num: int) -> None:
        if 10 * num_done // num > 10 * (num_done - 1) // num:
            say(f"{num_done} of {num} products quantised")

    return tell


def _compared(  # noqa: PLR0917 (what one comparison needs)
    config: EngineConfig, output: Path, sample: Sample, pieces: Sequence[Piece], asked: QuantizeOptions, say: Say
) -> dict[str, Any]:
    """The result against the model it was made from."""
    quantised = replace(config, model=replace(config.model, model=str(output), revision=None))
    wanted = QualityOptions(window=asked.window, seed=asked.seed)
    result = compare_on(open_pair(config, quantised), pieces, sample, wanted, say=say)
    return result | {"data": f"{asked.calibration} (held out)" if asked.scheme == "awq" else str(asked.calibration)}
