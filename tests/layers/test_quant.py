"""The seam of quantised layers: forms of stored tensors, fusing by parts, shares of ranks, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.linear import Product
from threefold.layers.linear import ColumnParallelLinear, RowParallelLinear
from threefold.layers.quant import StoredTensor
from threefold.parallel import single_group

Ranks = Callable[[int], list[Any]]
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}


class Packed:
    """A scheme that keeps what comes: inputs first, four outputs an element, a scale for every two inputs."""

    name = "packed"
    stored: Mapping[str, StoredTensor] = {
        "qweight": StoredTensor(torch.int32, out_dim=1, in_dim=0, outputs_each=4),
        "scales": StoredTensor(None, out_dim=1, in_dim=0, inputs_each=2),
        "order": StoredTensor(torch.int32, out_dim=None, in_dim=0),
        "scale": StoredTensor(torch.float32, out_dim=0, in_dim=None, is_one_a_part=True),
    }

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.bias: torch.Tensor | None = None

    def product(
        self, tensors: Mapping[str, torch.Tensor], bias: torch.Tensor | None, *, is_gated: bool, dtype: torch.dtype
    ) -> Product:
        self.tensors, self.bias = dict(tensors), bias
        return lambda x: x

    def kept_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
        return 0


def whole(outputs: int, inputs: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "qweight": torch.arange(inputs * outputs // 4, dtype=torch.int32).view(inputs, outputs // 4),
        "scales": torch.arange(inputs // 2 * outputs).float().view(inputs // 2, outputs),
        "order": torch.arange(inputs, dtype=torch.int32),
        "scale": torch.tensor([scale]),
    }


def test_shapes_of_stored_tensors() -> None:
    assert StoredTensor(None, 0, 1).shape(6, 10) == (6, 10)
    assert StoredTensor(torch.int32, 1, 0, outputs_each=8).shape(64, 10) == (10, 8)
    assert StoredTensor(torch.float32, 0, 1, outputs_each=128, inputs_each=128).shape(130, 256) == (2, 2)
    assert StoredTensor(torch.float32, 0, None, is_one_a_part=True).shape(130, 256) == (1,)
    assert StoredTensor(torch.float32, None, None).shape(130, 256) == ()


def test_dimensions_of_one_are_the_checkpoints_business_but_not_a_matrix() -> None:
    scales = StoredTensor(torch.float32, 0, None)
    assert scales.allows((6, 1), (6,)) and scales.allows((6,), (6,)) and not scales.allows((1, 7), (6,))
    assert StoredTensor(torch.float32, None, None).allows((1,), ())
    matrix = StoredTensor(torch.int8, 0, 1)
    assert not matrix.allows((6,), (6, 1)) and matrix.allows((6, 1), (6, 1))


def test_parts_are_fused_along_their_outputs() -> None:
    scheme, a, b = Packed(), whole(8, 6, 2.0), whole(4, 6, 3.0)
    layer = ColumnParallelLinear({"a": 8, "b": 4}, 6, has_bias=True, group=single_group(), scheme=scheme, **CPU)
    bias = torch.randn(12)
    for kind in a:
        layer.load("b", kind, b[kind])
        layer.load("a", kind, a[kind])
    layer.load("a", "bias", bias[:8])
    assert layer.missing == ["b.bias"]
    layer.load("b", "bias", bias[8:])

    assert torch.equal(scheme.tensors["qweight"], torch.cat([a["qweight"], b["qweight"]], dim=1))
    assert torch.equal(scheme.tensors["scales"], torch.cat([a["scales"], b["scales"]], dim=1))
    assert torch.equal(scheme.tensors["order"], torch.stack([a["order"], b["order"]]))
    assert scheme.tensors["scale"].tolist() == [2.0] * 8 + [3.0] * 4
    assert scheme.bias is not None and torch.equal(scheme.bias, bias)
    assert scheme.tensors["qweight"].dtype == torch.int32


@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_of_columns(ranks: Ranks, rank: int) -> None:
    scheme, a, b = Packed(), whole(8, 6), whole(16, 6)
    layer = ColumnParallelLinear({"a": 8, "b": 16}, 6, has_bias=False, group=ranks(2)[rank], scheme=scheme, **CPU)
    for kind in a:
        layer.load("a", kind, a[kind])
        layer.load("b", kind, b[kind])

    for kind, each in (("qweight", 4), ("scales", 1)):
        halves = [part[kind].chunk(2, dim=1)[rank] for part in (a, b)]
        assert torch.equal(scheme.tensors[kind], torch.cat(halves, dim=1)), each
    assert torch.equal(scheme.tensors["order"], torch.stack([a["order"], b["order"]]))
    assert scheme.tensors["scale"].shape == (12,)


@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_of_rows(ranks: Ranks, rank: int) -> None:
    scheme, all_of_it = Packed(), whole(8, 12)
    layer = RowParallelLinear("o", 12, 8, has_bias=True, group=ranks(2)[rank], scheme=scheme, **CPU)
    for kind, tensor in all_of_it.items():
        layer.load("o", kind, tensor)
    layer.load("o", "bias", torch.ones(8))

    assert torch.equal(scheme.tensors["qweight"], all_of_it["qweight"].chunk(2)[rank])
    assert torch.equal(scheme.tensors["scales"], all_of_it["scales"].chunk(2)[rank])
    assert torch.equal(scheme.tensors["order"], all_of_it["order"].chunk(2)[rank][None])
    assert scheme.bias is not None and scheme.bias.sum() == (8 if rank == 0 else 0)


def test_what_does_not_fit_is_refused(ranks: Ranks) -> None:
    def load(group: Any, parts: dict[str, int], inputs: int, kind: str, tensor: torch.Tensor) -> None:
        layer = ColumnParallelLinear(parts, inputs, has_bias=False, group=group, scheme=Packed(), **CPU)
        layer.load("a", kind, tensor)

    with pytest.raises(ModelLoadError, match=r"a\.qweight has shape \[5, 2\], the model needs \[6, 2\]"):
        load(single_group(), {"a": 8}, 6, "qweight", torch.zeros(5, 2, dtype=torch.int32))
    with pytest.raises(
        ModelLoadError, match=r"a\.qweight is stored for 4 outputs at a time, of which 6 outputs are no"
    ):
        load(single_group(), {"a": 6, "b": 8}, 6, "qweight", torch.zeros(6, 2, dtype=torch.int32))
    with pytest.raises(ModelLoadError, match="2 outputs on each of 4 ranks are no multiple; take fewer ranks"):
        load(ranks(4)[1], {"a": 8}, 6, "qweight", torch.zeros(6, 2, dtype=torch.int32))
    row = RowParallelLinear("o", 6, 8, has_bias=False, group=ranks(2)[0], scheme=Packed(), **CPU)
    with pytest.raises(ModelLoadError, match=r"o\.scales is stored for 2 inputs at a time, of which 3 inputs on each"):
        row.load("o", "scales", torch.zeros(3, 8))
    with pytest.raises(ModelLoadError, match="no such tensor"):
        row.load("o", "weight", torch.zeros(8, 6))


def test_a_last_part_may_end_within_an_element() -> None:
    scheme = Packed()
    layer = ColumnParallelLinear({"a": 8, "b": 6}, 6, has_bias=False, group=single_group(), scheme=scheme, **CPU)
    layer.load("b", "qweight", torch.ones(6, 2, dtype=torch.int32))
    layer.load("a", "qweight", torch.ones(6, 2, dtype=torch.int32))
    assert layer.missing == [f"{part}.{kind}" for part in "ab" for kind in ("order", "scale", "scales")]
