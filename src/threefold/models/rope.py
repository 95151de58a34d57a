"""What a checkpoint says about its rotary embedding, to RopeSpec.

Three dialects: Hugging Face before transformers 5 (`rope_theta` beside `rope_scaling`), since 5 (`rope_parameters`),
and GGUF (metadata keys, or a tensor of finished factors for llama3). Knows nothing about how the rotation is computed.
"""

from __future__ import annotations

import math

import numpy as np

from threefold.errors import ModelLoadError
from threefold.models.fields import Fields
from threefold.models.spec import RopeSpec

_DEFAULT_THETA = 10_000.0
_KNOWN = ("default", "linear", "dynamic", "llama3", "yarn")


def rope_from_config(config: Fields, max_positions: int) -> RopeSpec:
    """The rotary embedding of a config.json.

    Raises:
        ModelLoadError: a scaling that is not built, or a field of the wrong type.
    """
    section = config.section("rope_parameters") or config.section("rope_scaling") or Fields({}, config.source)
    theta = section.number("rope_theta", config.number("rope_theta", _DEFAULT_THETA))
    for holder in (section, config):
        if holder.number("partial_rotary_factor", 1.0) != 1.0:
            raise holder.fault("partial_rotary_factor", "must be 1: rotating a part of the head is not built")
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind not in _KNOWN:
        raise ModelLoadError(f"{section.source}: rope type {kind!r} is not built; known: {', '.join(_KNOWN)}")
    # Some checkpoints keep the trained length outside the section; transformers gives that place priority.
    outside = config.integer("original_max_position_embeddings", max_positions)
    is_outside = config.has("original_max_position_embeddings")
    original = outside if is_outside else section.integer("original_max_position_embeddings", max_positions)
    if kind == "yarn":
        return _yarn(section, theta, original, max_positions)
    if kind == "llama3":
        return _llama3(section, theta, original)
    factor = section.number("factor")
    return RopeSpec(theta, "linear" if kind == "linear" else "dynamic", factor, original_max_positions=original)


def _llama3(section: Fields, theta: float, original: int) -> RopeSpec:
    low, high = section.number("low_freq_factor", 1.0), section.number("high_freq_factor", 4.0)
    if high <= low:
        raise section.fault("high_freq_factor", f"must be larger than low_freq_factor ({low})")
    return RopeSpec(
        theta=theta,
        scaling="llama3",
        factor=section.number("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(section: Fields, theta: float, original: int, max_positions: int) -> RopeSpec:
    if not section.boolean("truncate", True):
        raise section.fault("truncate", "must be true: yarn without rounded bounds is not built")
    factor = section.number("factor", max_positions / original)
    return RopeSpec(
        theta=theta,
        scaling="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(section, factor),
    )


def _yarn_attention_factor(section: Fields, factor: float) -> float | None:
    if section.has("attention_factor"):
        return section.number("attention_factor")
    mscale = section.number("mscale", 0.0, is_positive=False)
    mscale_all = section.number("mscale_all_dim", 0.0, is_positive=False)
    if not (mscale and mscale_all) or factor <= 1:
        return None
    log = 0.1 * math.log(factor)
    return (mscale * log + 1) / (mscale_all * log + 1)


def longest_context(rope: RopeSpec, max_positions: int) -> int:
    """Tokens a config.json's model may read: scalings other than llama3 stretch what it was trained on."""
    if rope.scaling in ("linear", "dynamic", "yarn"):
        return max(max_positions, int(rope.original_max_positions * rope.factor))
    return max_positions


def rope_from_gguf(metadata: Fields, arch: str, freq_factors: np.ndarray | None) -> RopeSpec:
    """The rotary embedding of a GGUF file.

    Args:
        metadata: the file's key-value pairs.
        arch: prefix of the architecture's keys.
        freq_factors: [head_dim / 2] float32 divisors of the frequencies: tensor `rope_freqs.weight`, None = not there.

    Raises:
        ModelLoadError: a scaling that is not built, or factors that follow no known rule.
    """
    theta = metadata.number(f"{arch}.rope.freq_base", _DEFAULT_THETA)
    if freq_factors is not None:
        return llama3_from_factors(freq_factors, theta)
    kind = metadata.text(f"{arch}.rope.scaling.type", "none")
    factor = metadata.number(f"{arch}.rope.scaling.factor", metadata.number(f"{arch}.rope.scale_linear", 1.0))
    if kind == "none" and not metadata.has(f"{arch}.rope.scale_linear"):
        return RopeSpec(theta=theta)
    context = metadata.integer(f"{arch}.context_length")
    original = metadata.integer(f"{arch}.rope.scaling.original_context_length", context)
    if kind in ("linear", "none"):
        return RopeSpec(theta=theta, scaling="linear", factor=factor, original_max_positions=original)
    if kind != "yarn":
        raise metadata.fault(f"{arch}.rope.scaling.type", "must be none, linear or yarn")
    multiplier = metadata.number(f"{arch}.rope.scaling.attn_factor", 1.0)
    return RopeSpec(
        theta=theta,
        scaling="yarn",
        factor=factor,
        original_max_positions=original,
        beta_fast=metadata.number(f"{arch}.rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=metadata.number(f"{arch}.rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=None if multiplier == 1.0 else multiplier * (0.1 * math.log(max(factor, 1.0)) + 1),
    )


def llama3_from_factors(factors: np.ndarray, theta: float) -> RopeSpec:
    """The llama3 scaling whose finished divisors a GGUF file stores.

    The rule divides a frequency of wavelength w by 1 / ((1 - s) / F + s) with s = (original / w - low) / (high - low),
    clamped to [0, 1]. F is the largest divisor; s over 1 / w is a straight line, which two frequencies between the ends
    give. Only ratios of low, high and original matter, so low is set to 1.

    Args:
        factors: [head_dim / 2] divisors, 1 for frequencies left alone.
        theta: base of the frequencies.

    Raises:
        ModelLoadError: the divisors are not llama3's.
    """
    divisors = factors.astype(np.float64)
    largest = float(divisors.max())
    if np.allclose(divisors, 1.0):
        return RopeSpec(theta=theta)
    per_wavelength = theta ** (-np.arange(len(divisors)) / len(divisors)) / (2 * math.pi)
    is_between = (divisors > 1 + 1e-5) & (divisors < largest * (1 - 1e-5))
    if is_between.sum() >= 2 and divisors.min() > 0 and math.isfinite(largest):
        smooth = (1 / divisors[is_between] - 1 / largest) / (1 - 1 / largest)
        slope, intercept = np.polyfit(per_wavelength[is_between], smooth, 1)
        if slope > 0 > intercept:
            high = round(1 - 1 / float(intercept), 3)
            original = round(float(slope) * (high - 1))
            again = np.clip((original * per_wavelength - 1) / (high - 1), 0, 1)
            if np.allclose(divisors, 1 / ((1 - again) / largest + again), rtol=1e-3):
                return RopeSpec(theta, "llama3", largest, original, low_freq_factor=1.0, high_freq_factor=high)
    raise ModelLoadError(
        "GGUF tensor rope_freqs.weight does not follow llama3's scaling rule, the only one that is built"
    )
