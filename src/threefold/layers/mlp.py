"""The gated MLP: gate and up in one product with SiLU on the way out, then down."""

from __future__ import annotations

import torch

from threefold.layers.linear import ColumnParallelLinear, Inputs, RowParallelLinear
from threefold.layers.quant import QuantScheme
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
        gate_up_scheme: QuantScheme | None = None,
        down_scheme: QuantScheme | None = None,
    ) -> None:
        self.gate_up = ColumnParallelLinear(
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            hidden_size,
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            group=group,
            is_gated=True,
            scheme=gate_up_scheme,
        )
        self.down = RowParallelLinear(
            "down_proj",
            intermediate_size,
            hidden_size,
            has_bias=has_bias,
            dtype=dtype,
            device=device,
            group=group,
            scheme=down_scheme,
        )

    def link(self) -> None:
        """Once both products are loaded: let the gate hand on what `down` takes."""
        self.gate_up.hand_on_to(self.down)

    def inner(self, hidden: Inputs) -> Inputs:
        """[num_tokens, hidden_size] -> what `down` takes."""
        return self.gate_up.handed_on(hidden)

    def __call__(self, hidden: Inputs) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same in the model's type."""
        return self.down(self.inner(hidden))
