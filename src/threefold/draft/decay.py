"""How a mean forgets, when readings come several at a time: they count as they would one after another.

Knows nothing about what is read.
"""

from __future__ import annotations


def take_in(num_known: float, num_new: int, memory: float) -> tuple[float, float]:
    """A mean over num_known readings, of which each further one takes a share, 1 / memory at least, sees num_new more.

    Returns:
        The share of the new ones in it, and how many readings it stands for from then on.
    """
    num_growing = min(num_new, memory - num_known)
    num_then = num_known + num_growing
    share_known = num_known / num_then * (1.0 - 1.0 / memory) ** (num_new - num_growing)
    return 1.0 - share_known, num_then
