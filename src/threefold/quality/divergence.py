"""Two models' logits at the same positions to what is compared, in float32, for a few positions at a time.

    surprise    -log p(token that follows)                         its mean's exponential is the perplexity
    divergence  KL(A || B) = sum over tokens of p_A (log p_A - log p_B)        Kullback and Leibler 1951, in nats
    agreement   the most likely token is the same

Where only one model fits into memory, A leaves a sketch of each distribution behind: its most likely tokens, and the
rest as one. By the log-sum inequality the divergence of what is so merged is a lower bound. Knows nothing about texts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Compared(NamedTuple):
    """Figures of some positions, each [n] float32 on the CPU."""

    surprise_a: torch.Tensor
    surprise_b: torch.Tensor
    divergence: torch.Tensor
    agrees: torch.Tensor


class Sketch(NamedTuple):
    """What is kept of A's distributions, on the CPU."""

    surprise: torch.Tensor  # [n] float32
    most_likely: torch.Tensor  # [n] int64
    top_ids: torch.Tensor  # [n, k] int32
    top_logprobs: torch.Tensor  # [n, k] float32
    rest: torch.Tensor  # [n] float32, logarithm of the probability of all others together


def compare(logits_a: torch.Tensor, logits_b: torch.Tensor, targets: torch.Tensor) -> Compared:
    """Compare whole distributions.

    Args:
        logits_a: [n, vocab] float32.
        logits_b: the same of the other model.
        targets: [n] int64, the tokens that follow.
    """
    a, b = logits_a.log_softmax(-1), logits_b.log_softmax(-1)
    divergence = (a.exp() * (a - b)).sum(-1).clamp_min_(0.0)  # rounding may leave less than nothing
    agrees = a.argmax(-1) == b.argmax(-1)
    return _on_cpu(_surprise(a, targets), _surprise(b, targets), divergence, agrees)


def sketch(logits: torch.Tensor, targets: torch.Tensor, num_top: int) -> Sketch:
    """What is kept of A: its num_top most likely tokens and the surprise."""
    logprobs = logits.log_softmax(-1)
    top = logprobs.topk(min(num_top, logprobs.shape[-1]), dim=-1)
    rest = _rest(logprobs, top.indices)
    kept = (_surprise(logprobs, targets), logprobs.argmax(-1), top.indices.int(), top.values, rest)
    return Sketch(*(tensor.cpu() for tensor in kept))


def compare_with_sketch(kept: Sketch, logits_b: torch.Tensor, targets: torch.Tensor) -> Compared:
    """Compare B's whole distributions with what was kept of A's."""
    b = logits_b.log_softmax(-1)
    ids = kept.top_ids.to(b.device, torch.int64)
    top_a, rest_a = kept.top_logprobs.to(b.device), kept.rest.to(b.device)
    rest_b = _rest(b, ids)
    merged = torch.where(rest_a.isinf(), torch.zeros_like(rest_a), rest_a.exp() * (rest_a - rest_b))  # no others
    divergence = ((top_a.exp() * (top_a - b.gather(-1, ids))).sum(-1) + merged).clamp_min_(0.0)
    agrees = kept.most_likely.to(b.device) == b.argmax(-1)
    return _on_cpu(kept.surprise, _surprise(b, targets), divergence, agrees)


def _rest(logprobs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Summed where it lies: what is left of one would drown in rounding."""
    return logprobs.scatter(-1, ids, -torch.inf).logsumexp(-1)


def _surprise(logprobs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def _on_cpu(*figures: torch.Tensor) -> Compared:
    return Compared(*(figure.float().cpu() for figure in figures))
