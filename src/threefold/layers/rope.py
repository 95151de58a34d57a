"""Rotary embedding's angles (Su et al. 2021) and the scalings that stretch them to longer contexts.

Knows nothing about heads. Angles are worked out once a step, for the step's tokens, in float32: there is no table of
all positions to keep.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch

# ruff: noqa: D102 (the meanings stand in models.spec.RopeSpec)


class RopeSettings(Protocol):
    """What layers need to know of models.spec.RopeSpec."""

    @property
    def theta(self) -> float: ...
    @property
    def scaling(self) -> str: ...
    @property
    def factor(self) -> float: ...
    @property
    def original_max_positions(self) -> int: ...
    @property
    def low_freq_factor(self) -> float: ...
    @property
    def high_freq_factor(self) -> float: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...
    @property
    def attention_factor(self) -> float | None: ...


class RotaryAngles:
    """Positions to cos and sin, by a model's frequencies."""

    def __init__(self, rope: RopeSettings, head_dim: int, max_positions: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim, max_positions).to(device)  # [head_dim / 2]
        self._magnitude = magnitude(rope)

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, head_dim] float32: cos of all angles, then sin of all angles."""
        angles = positions[:, None].float() * self._frequencies
        table = torch.cat((angles.cos(), angles.sin()), dim=1)
        return table if self._magnitude == 1.0 else table * self._magnitude


def magnitude(rope: RopeSettings) -> float:
    """Factor on cos and sin: yarn sharpens attention over long contexts (Peng et al. 2023, section 3.4)."""
    if rope.scaling != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0


def inverse_frequencies(rope: RopeSettings, head_dim: int, max_positions: int) -> torch.Tensor:
    """Radians a position, for each pair of channels, [head_dim / 2] float32.

    Args:
        rope: base and scaling.
        head_dim: width of a head.
        max_positions: longest context; `dynamic` stretches for it from the start, so that a cached key is never stale.
    """
    plain = _frequencies(rope.theta, head_dim)
    match rope.scaling:
        case "linear":
            return plain / rope.factor
        case "llama3":
            return _llama3(rope, plain)
        case "yarn":
            return _yarn(rope, plain, head_dim)
        case "dynamic":
            return _frequencies(_dynamic_theta(rope, head_dim, max_positions), head_dim)
        case _:
            return plain


def _frequencies(theta: float, head_dim: int) -> torch.Tensor:
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def _llama3(rope: RopeSettings, plain: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are stretched, short ones left, those between blended (Llama 3.1's rule)."""
    turns = rope.original_max_positions * plain / (2 * math.pi)  # in the trained context
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = share.clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / rope.factor


def _yarn(rope: RopeSettings, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
    """NTK by parts (Peng et al. 2023): a ramp over channel pairs between beta_fast and beta_slow rotations."""

    def pair_of(rotations: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(pair_of(rope.beta_fast)), 0)
    high = min(math.ceil(pair_of(rope.beta_slow)), head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    stretched = ramp.clamp(0.0, 1.0)
    return plain / rope.factor * stretched + plain * (1 - stretched)


def _dynamic_theta(rope: RopeSettings, head_dim: int, max_positions: int) -> float:
    """NTK-aware base for contexts of max_positions; the plain one when they are no longer than trained."""
    stretch = max(max_positions / rope.original_max_positions, 1.0)
    base = rope.factor * stretch - (rope.factor - 1)
    return float(rope.theta * base ** (head_dim / (head_dim - 2)))
