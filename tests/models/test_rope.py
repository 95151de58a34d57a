"""Rotary embeddings in three dialects; llama3's finished factors are taken back to the rule that made them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threefold.errors import ModelLoadError
from threefold.models.fields import Fields
from threefold.models.rope import llama3_from_factors, longest_context, rope_from_config, rope_from_gguf
from threefold.models.spec import RopeSpec

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def read(config: dict[str, Any], max_positions: int = 131_072) -> RopeSpec:
    return rope_from_config(Fields(config, "config.json"), max_positions)


def test_no_field_means_the_plain_embedding() -> None:
    assert read({}) == RopeSpec(theta=10_000.0)
    assert read({"rope_theta": 5e5, "rope_scaling": None}) == RopeSpec(theta=5e5)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"rope_type": "llama3"}},
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"type": "llama3"}},
        {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e5}},
    ],
)
def test_old_and_new_dialects_agree(config: dict[str, Any]) -> None:
    assert read(config) == RopeSpec(5e5, "llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)


def test_linear_and_dynamic_stretch_the_models_own_length() -> None:
    for kind in ("linear", "dynamic"):
        rope = read({"rope_scaling": {"type": kind, "factor": 4}}, 4096)
        assert (rope.scaling, rope.factor, rope.original_max_positions) == (kind, 4.0, 4096)
        assert longest_context(rope, 4096) == 16_384


def test_yarn() -> None:
    section = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    rope = read({"rope_scaling": section}, 32_768)
    assert rope == RopeSpec(10_000.0, "yarn", 4.0, 32_768)
    assert longest_context(rope, 32_768) == 131_072
    both = read({"rope_scaling": section | {"mscale": 1.0, "mscale_all_dim": 0.5}})
    log = 0.1 * math.log(4)
    assert both.attention_factor == pytest.approx((log + 1) / (0.5 * log + 1))
    assert read({"rope_scaling": section | {"attention_factor": 1.2}}).attention_factor == 1.2
    assert read({"rope_scaling": section | {"beta_fast": 16, "beta_slow": 2}}).beta_slow == 2.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' is not built; known: default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor must be a positive number; it is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_theta": -1}, "rope_theta must be a positive number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "truncate must be true"),
        ({"rope_scaling": LLAMA3 | {"type": "llama3", "high_freq_factor": 1.0}}, "high_freq_factor must be larger"),
    ],
)
def test_what_is_not_built_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(config)


def gguf(**pairs: Any) -> RopeSpec:
    named = {f"qwen2.rope.{key.replace('__', '.')}": value for key, value in pairs.items()}
    return rope_from_gguf(Fields(named | {"qwen2.context_length": 32_768}, "file"), "qwen2", None)


def test_gguf_keys() -> None:
    assert gguf(freq_base=1e6) == RopeSpec(1e6)
    assert gguf(scale_linear=2.0) == RopeSpec(10_000.0, "linear", 2.0, 32_768)
    linear = gguf(scaling__type="linear", scaling__factor=4.0, scaling__original_context_length=8192)
    assert linear == RopeSpec(10_000.0, "linear", 4.0, 8192)
    yarn = gguf(scaling__type="yarn", scaling__factor=4.0, scaling__original_context_length=8192)
    assert yarn == RopeSpec(10_000.0, "yarn", 4.0, 8192)
    louder = gguf(scaling__type="yarn", scaling__factor=4.0, scaling__attn_factor=1.5)
    assert louder.attention_factor == pytest.approx(1.5 * (0.1 * math.log(4) + 1))
    with pytest.raises(
        ModelLoadError, match=r"qwen2\.rope\.scaling\.type must be none, linear or yarn; got 'longrope'"
    ):
        gguf(scaling__type="longrope")


def llama3_factors(theta: float, head_dim: int, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """The divisors as the rule's publication gives them, one frequency at a time."""
    divisors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < original / high:
            divisors.append(1.0)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


@given(
    theta=st.sampled_from([10_000.0, 500_000.0, 1e6]),
    head_dim=st.sampled_from([64, 128]),
    factor=st.sampled_from([4.0, 8.0, 32.0]),
    high=st.sampled_from([4.0, 8.0]),
    original=st.sampled_from([2048, 8192]),
)
def test_finished_factors_give_back_their_rule(
    theta: float, head_dim: int, factor: float, high: float, original: int
) -> None:
    divisors = llama3_factors(theta, head_dim, factor, 1.0, high, original)
    assert llama3_from_factors(divisors, theta) == RopeSpec(theta, "llama3", factor, original, 1.0, high)


def test_factors_of_another_rule_are_refused() -> None:
    assert llama3_from_factors(np.ones(32, np.float32), 1e4) == RopeSpec(1e4)
    for odd in (np.linspace(1, 8, 32), np.zeros(32), np.full(32, np.nan), -np.ones(32), np.full(32, np.inf)):
        with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight does not follow llama3's"):
            llama3_from_factors(odd.astype(np.float32), 1e4)
