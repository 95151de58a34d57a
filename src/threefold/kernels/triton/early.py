"""Kernels that begin before the one ahead of them has ended, where the card can (programmatic dependent launch).

A kernel that is launched so (`launch_pdl`) begins once every program of the one ahead has said that it may
(`gdc_launch_dependents`), and waits (`gdc_wait`) before it reads what that one has written and before it writes.
"""

from __future__ import annotations

import torch

_EARLIEST = (9, 0)
"""Compute capability of the first cards that can."""


def can_begin_early(device: torch.device) -> bool:
    """Whether kernels may begin before the one ahead of them has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _EARLIEST
