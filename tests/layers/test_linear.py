"""Linear layers: fused parts, shares of two ranks, and weights that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from threefold.errors import ConfigError, ModelLoadError
from threefold.layers.linear import ColumnParallelLinear, RowParallelLinear
from threefold.parallel import single_group

Ranks = Callable[[int], list[Any]]
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}


def column(group: Any, has_bias: bool = False) -> ColumnParallelLinear:
    return ColumnParallelLinear({"a": 8, "b": 4}, 6, has_bias=has_bias, group=group, **CPU)


def row(group: Any, has_bias: bool = False) -> RowParallelLinear:
    return RowParallelLinear("o", 6, 5, has_bias=has_bias, group=group, **CPU)


def test_parts_stand_one_behind_another() -> None:
    torch.manual_seed(0)
    a, b, bias_a, bias_b, x = (torch.randn(s) for s in ((8, 6), (4, 6), (8,), (4,), (3, 6)))
    layer = column(single_group(), has_bias=True)
    for part, kind, tensor in (("b", "weight", b), ("a", "bias", bias_a), ("a", "weight", a), ("b", "bias", bias_b)):
        assert f"{part}.{kind}" in layer.missing
        layer.load(part, kind, tensor)

    assert [] == layer.missing
    torch.testing.assert_close(layer(x), torch.cat([x @ a.T + bias_a, x @ b.T + bias_b], dim=1))


def test_two_ranks_of_columns_have_half_of_each_part(ranks: Ranks) -> None:
    torch.manual_seed(0)
    a, b, x = torch.randn(8, 6), torch.randn(4, 6), torch.randn(3, 6)
    outputs = []
    for group in ranks(2):
        layer = column(group)
        layer.load("a", "weight", a)
        layer.load("b", "weight", b)
        outputs.append(layer(x))

    torch.testing.assert_close(torch.cat([out[:, :4] for out in outputs], dim=1), x @ a.T)
    torch.testing.assert_close(torch.cat([out[:, 4:] for out in outputs], dim=1), x @ b.T)


def test_two_ranks_of_rows_sum_up_and_add_the_bias_once(ranks: Ranks) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(5, 6), torch.randn(5), torch.randn(3, 6)
    total = torch.zeros(3, 5)
    for group in ranks(2):
        layer = row(group, has_bias=True)
        layer.load("o", "weight", weight)
        layer.load("o", "bias", bias)
        total += layer(x[:, group.rank * 3 : group.rank * 3 + 3].contiguous())

    torch.testing.assert_close(total, x @ weight.T + bias)


def test_weights_that_do_not_fit_are_refused() -> None:
    layer = column(single_group())
    with pytest.raises(ModelLoadError, match=r"shape \[8, 5\], the model needs \[8, 6\]"):
        layer.load("a", "weight", torch.ones(8, 5))
    layer.load("a", "weight", torch.ones(8, 6))
    with pytest.raises(ModelLoadError, match="came twice"):
        layer.load("a", "weight", torch.ones(8, 6))
    with pytest.raises(ModelLoadError, match="no such tensor"):
        layer.load("a", "bias", torch.ones(8))


def test_ranks_that_do_not_divide_are_refused(ranks: Ranks) -> None:
    with pytest.raises(ConfigError, match="does not divide"):
        column(ranks(3)[0])


@pytest.mark.parametrize(
    ("make", "part", "kind", "shape"),
    [
        (column, "a", "weight", (9, 6)),
        (column, "a", "weight", (8,)),
        (column, "b", "bias", (5,)),
        (row, "o", "weight", (5, 7)),
        (row, "o", "bias", (6,)),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_wrong_shape_is_refused_by_every_rank(
    ranks: Ranks, num_ranks: int, make: Callable[..., Any], part: str, kind: str, shape: tuple[int, ...]
) -> None:
    """Also where a rank's share of the wrong tensor would have just the right size."""
    for group in ranks(num_ranks):
        layer = make(group, has_bias=True)
        with pytest.raises(ModelLoadError, match="the model needs"):
            layer.load(part, kind, torch.ones(shape))
        assert f"{part}.{kind}" in layer.missing


def test_bfloat16_layers_take_float32_tensors() -> None:
    torch.manual_seed(0)
    layer = ColumnParallelLinear(
        {"a": 128}, 64, has_bias=True, dtype=torch.bfloat16, device=torch.device("cpu"), group=single_group()
    )
    weight, bias, x = torch.randn(128, 64) / 8, torch.randn(128), torch.randn(3, 64).bfloat16()
    layer.load("a", "weight", weight)
    layer.load("a", "bias", bias)

    torch.testing.assert_close(layer(x).float(), x.float() @ weight.T + bias, rtol=3e-2, atol=3e-2)
