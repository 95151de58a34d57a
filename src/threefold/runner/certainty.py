"""The most likely token of each position and how sure the model is of it: what a draft model's pass is asked for.

Knows nothing about drafts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from threefold.runner.forward import Pass
from threefold.sample.sampler import most_likely


def certainty(largest: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Probability of the most likely token: [n] its logit, [n, vocab] all logits -> [n]; device work only."""
    return (largest - logits.logsumexp(-1)).exp()


def likely_next(found: Pass, num_wanted: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Wait for a pass.

    Args:
        found: with logits.
        num_wanted: positions that count, the first ones.

    Returns:
        token ids and their probabilities, each [num_wanted].
    """
    assert found.logits is not None
    logits = found.logits[:num_wanted]
    likely = found.likely or most_likely(logits)
    chances = certainty(likely.values[:num_wanted], logits)
    packed = torch.stack([likely.tokens[:num_wanted].double(), chances.double()]).cpu().numpy()
    return packed[0].astype(np.int64), packed[1]
