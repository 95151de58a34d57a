"""Bucket bounds of the histograms: vLLM's, so that its dashboards read ours, with finer ones below for fast models."""

from __future__ import annotations

from itertools import takewhile

FINE_S = (0.001, 0.002, 0.003, 0.005, 0.0075)
"""Ours: a small model on a large card makes a token in a millisecond or two."""

FIRST_TOKEN_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_S = (
    *FINE_S,
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.01, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ANSWERS = (1.0, 2.0, 5.0, 10.0, 20.0)
ITERATION_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))


def token_counts(max_tokens: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to max_tokens."""
    series = (float(digit * 10**power) for power in range(10) for digit in (1, 2, 5))
    return tuple(takewhile(lambda bound: bound <= max_tokens, series)) or (1.0,)
