"""A comparison from beginning to end: open both models, pick the text, read it with both, sum up.

Whatever can be refused is refused before any weight is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from threefold.advise.trace import Encoder
from threefold.config import EngineConfig
from threefold.engine.opened import Opened, open_engine
from threefold.errors import ConfigError
from threefold.quality.documents import Piece, Sample, cut, read_sample
from threefold.quality.measure import Measured, Pair, measure
from threefold.quality.options import QualityOptions
from threefold.quality.progress import Ticker
from threefold.quality.words import remarks, verdict
from threefold.text.pairing import difference
from threefold.text.tokenizer import Tokenizer

Say = Callable[[str], None]


class OpenedPair(NamedTuple):
    """Two models that can be compared, before any weight is read."""

    a: Opened
    b: Opened
    tokenizer: Tokenizer
    """Of both."""

    @property
    def width(self) -> int:
        """Tokens that both know."""
        return min(self.a.spec.vocab_size, self.b.spec.vocab_size)

    @property
    def max_positions(self) -> int:
        """Longest piece that both can read."""
        return min(self.a.spec.max_positions, self.b.spec.max_positions)


def open_pair(a: EngineConfig, b: EngineConfig) -> OpenedPair:
    """Open both models.

    Raises:
        ConfigError: they do not speak one language.
        OperatorError: one of them cannot be opened, or a setting cannot hold.
    """
    opened_a = open_engine(a)
    if a.model.dtype == b.model.dtype == "auto" and not opened_a.device.is_gpu:
        b = _in_dtype(b, opened_a.limits.dtype)  # a CPU's choice is measured, and must not differ by chance
    opened_b = open_engine(b)
    tokenizer_a, tokenizer_b = _tokenizer(opened_a), _tokenizer(opened_b)
    found = difference(tokenizer_a, tokenizer_b)
    if found is not None:
        raise ConfigError(
            f"'{opened_b.model_name}' {found} with '{opened_a.model_name}': with different tokenizers the two predict "
            "different things, and only models of one tokenizer can be compared"
        )
    opened_a, opened_b = (
        replace(opened, config=_in_dtype(opened.config, opened.limits.dtype)) for opened in (opened_a, opened_b)
    )
    return OpenedPair(opened_a, opened_b, tokenizer_a)


def _in_dtype(config: EngineConfig, dtype: str) -> EngineConfig:
    return replace(config, model=replace(config.model, dtype=dtype))


def _tokenizer(opened: Opened) -> Tokenizer:
    own = opened.config.model.tokenizer
    return (
        Tokenizer.from_facts(opened.checkpoint.plain_tokenizer_facts) if own is None else Tokenizer.from_path(Path(own))
    )


def compare_models(a: EngineConfig, b: EngineConfig, data: Path, asked: QualityOptions, *, say: Say) -> dict[str, Any]:
    """Compare two models on a text.

    Args:
        a: the model that is taken for right.
        b: the other one.
        data: the text.
        asked: how much of it is read, and how.
        say: told what is being done.

    Returns:
        Figures, remarks and verdict, ready for JSON.

    Raises:
        OperatorError: the text cannot be read, or the models cannot be compared or loaded.
    """
    pair = open_pair(a, b)
    sample = read_sample(data, Encoder(pair.tokenizer), asked.max_tokens, asked.seed)
    pieces = cut(sample.documents, min(asked.window, pair.max_positions), pair.tokenizer.bos_token_id)
    return compare_on(pair, pieces, sample, asked, say=say) | {"data": str(data)}


def compare_on(
    pair: OpenedPair, pieces: Sequence[Piece], sample: Sample, asked: QualityOptions, *, say: Say
) -> dict[str, Any]:
    """Compare two opened models on pieces of a sample.

    Raises:
        OperatorError: as compare_models.
    """
    _check_ids(pieces, pair)
    num_tokens = sum(len(piece.token_ids) for piece in pieces)
    say(f"comparing on {num_tokens:,} tokens in {len(pieces):,} pieces; A: {label(pair.a)}; B: {label(pair.b)}")
    wanted = Pair(pair.a.config, pair.b.config, pair.width)
    measured = measure(wanted, pieces, is_in_turn=asked.is_in_turn, tell=Ticker(len(pieces)), say=say)
    result = _figures(pair, measured, asked)
    result["remarks"] = remarks(result, sample, pair.width)
    result["verdict"] = verdict(result)
    return result


def _check_ids(pieces: Sequence[Piece], pair: OpenedPair) -> None:
    if not pieces:
        raise ConfigError("no text is long enough: a prediction needs a token before it")
    highest = max(max(piece.token_ids) for piece in pieces)
    if highest >= pair.width:
        raise ConfigError(f"the text holds token {highest}, and the smaller vocabulary has {pair.width}")


def _figures(pair: OpenedPair, measured: Measured, asked: QualityOptions) -> dict[str, Any]:
    return {
        "kind": "quality",
        "model_a": _facts(pair.a),
        "model_b": _facts(pair.b),
        "window": asked.window,
        "duration_s": measured.duration_s,
        "num_top": measured.num_top,
        "is_cut": measured.is_cut,
        **measured.readings.summary(asked.seed).to_dict(),
    }


def _facts(opened: Opened) -> dict[str, Any]:
    return {
        "label": label(opened),
        "model": opened.model_name,
        "storage": opened.checkpoint.storage,
        "dtype": opened.limits.dtype,
        "quantization": opened.spec.quantization.kind if opened.spec.quantization is not None else None,
        "kv_cache_dtype": opened.config.cache.kv_cache_dtype,
        "vocab_size": opened.spec.vocab_size,
        "device": opened.device.name,
        "is_gpu": opened.device.is_gpu,
    }


def label(opened: Opened) -> str:
    """A model and how it is run, in a few words."""
    quantization, kv_dtype = opened.spec.quantization, opened.config.cache.kv_cache_dtype
    words = [opened.checkpoint.storage]
    words += [f"{quantization.kind}: {quantization.source}"] if quantization is not None else []
    words += ["embedding int8"] if quantization is not None and quantization.has_int8_tables else []
    words += [opened.limits.dtype]
    words += [f"KV {kv_dtype}"] if kv_dtype != "auto" else []
    return f"{opened.model_name} ({', '.join(words)})"
