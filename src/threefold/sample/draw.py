"""Draws one token from each row of logits, by temperature, min_p, top_k and top_p.

    softmax(logits / temperature) ──► floor = the largest of three thresholds ──► inverse CDF among {p >= floor}
        1. min_p   min_p * the largest probability
        2. top_k   the k-th largest probability
        3. top_p   of what is left, renormalised: the smallest set of the most likely tokens that reaches top_p

Tokens tied with the last one kept are kept too, so that the result does not depend on how a sort breaks ties. The
inverse CDF runs in the order of token ids, and one uniform number decides: a draw is a function of the row and of
nothing else. The torch body is the contract and runs on any device; `native.py` is the same for CPUs and
`kernels/triton/draw.py` for cards, both much faster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from threefold.sample.native import Filters, draw_rows


class DeviceFilters(NamedTuple):
    """What narrows each row's choice, beside the logits; tensors are [num_rows]."""

    top_k: torch.Tensor
    """int32, 0 = all."""
    top_p: torch.Tensor
    """float32, 1 = all."""
    min_p: torch.Tensor
    """float32, 0 = all."""


def draw(
    logits: torch.Tensor,
    temperature: npt.NDArray[np.float32],
    filters: Filters,
    uniforms: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """Draw one token id a row.

    Args:
        logits: [num_rows, vocab] float32, finite or -inf, at least one finite in a row.
        temperature: [num_rows] at least 1e-5.
        filters: what narrows the choice.
        uniforms: [num_rows] in [0, 1).

    Returns:
        [num_rows] token ids, never one of probability zero.
    """
    if logits.device.type == "cpu":
        # One memory layout, or the body would be compiled anew for another one, in the middle of a step.
        rows = np.ascontiguousarray(logits.numpy())
        drawn: npt.NDArray[np.int64] = draw_rows(rows, temperature, filters, uniforms)
        return drawn
    device = logits.device
    top_k = np.minimum(filters.top_k, logits.shape[1]).astype(np.int32)
    on_device = DeviceFilters(*(_upload(array, device) for array in (top_k, filters.top_p, filters.min_p)))
    tokens = draw_on_device(logits, _upload(temperature, device), on_device, _upload(uniforms, device))
    drawn_ids: npt.NDArray[np.int64] = tokens.cpu().numpy()
    return drawn_ids


def draw_on_device(
    logits: torch.Tensor, temperature: torch.Tensor, filters: DeviceFilters, uniforms: torch.Tensor
) -> torch.Tensor:
    """The same on a card, all tensors there, without waiting for it: may stand in a captured graph.

    Args:
        logits: [num_rows, vocab] float32. A row without a number that can be drawn gives any token of the vocabulary.
        temperature: [num_rows] float32; 0 = the most likely token, whatever the filters.
        filters: what narrows the choice.
        uniforms: [num_rows] float64 in [0, 1).

    Returns:
        [num_rows] int64.
    """
    from threefold.kernels.triton.draw import draw_body

    return draw_body(logits, temperature, filters.top_k, filters.top_p, filters.min_p, uniforms)


def _upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def warm_up() -> None:
    """Compile the CPU body, or read it from disk, so that no request has to wait for it."""
    one = np.ones(1, dtype=np.float32)
    draw(torch.zeros(1, 2), one, Filters(np.zeros(1, dtype=np.int64), one, one), np.zeros(1))


def draw_torch(
    logits: torch.Tensor,
    temperature: npt.NDArray[np.float32],
    filters: Filters,
    uniforms: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """The contract of `draw`, in torch."""
    probabilities = torch.softmax(logits / torch.from_numpy(temperature).to(logits.device).unsqueeze(1), -1)
    kept = probabilities.double()
    if (filters.top_k > 0).any() or (filters.top_p < 1).any() or (filters.min_p > 0).any():
        kept = kept * (probabilities >= _floors(probabilities, filters))
    cdf = kept.cumsum(-1)
    target = torch.from_numpy(uniforms).to(cdf.device).unsqueeze(1) * cdf[:, -1:]
    drawn = torch.searchsorted(cdf, target, right=True).squeeze(1)
    # Rounding may push the target onto the end: then the last token kept is meant.
    last = torch.searchsorted(cdf, cdf[:, -1:].contiguous()).squeeze(1)
    drawn_ids: npt.NDArray[np.int64] = torch.minimum(drawn, last).cpu().numpy()
    return drawn_ids


def _floors(probabilities: torch.Tensor, filters: Filters) -> torch.Tensor:
    """The least probability kept in each row, [num_rows, 1]."""
    device = probabilities.device
    ordered = probabilities.sort(-1, descending=True).values  # [num_rows, vocab]
    vocab = ordered.shape[1]
    ranks = torch.from_numpy(np.where(filters.top_k > 0, np.minimum(filters.top_k, vocab), vocab) - 1).to(device)
    floor = torch.maximum(
        torch.from_numpy(filters.min_p).to(device).unsqueeze(1) * ordered[:, :1], ordered.gather(1, ranks.unsqueeze(1))
    )
    mass = (ordered.double() * (ordered >= floor)).cumsum(-1)
    share = torch.from_numpy(filters.top_p.astype(np.float64)).to(device).unsqueeze(1)
    last = torch.searchsorted(mass, share * mass[:, -1:].contiguous()).clamp_(max=vocab - 1)
    return torch.where(share < 1, torch.maximum(floor, ordered.gather(1, last)), floor)
