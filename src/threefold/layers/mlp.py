"""The gated MLP: gate and up in one product with SiLU on the way out, then down."""

from __future__ import annotations

import torch

from threefold.layers.linear import ColumnParallelLinear, RowParallelLinear
from threefold.parallel import Group


class GatedMLP:
    """down(silu(gate(x)) · up(x)), the intermediate channels divided among the ranks."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        group: Group,
    ) -> None:
        self.gate_up = ColumnParallelLinear(
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            hidden_size,
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            group=group,
            is_gated=True,
        )
        self.down = RowParallelLinear(
            "down_proj", intermediate_size, hidden_size, has_bias=has_bias, dtype=dtype, device=device, group=group
        )

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        return self.down(self.gate_up(hidden))
