"""AWQ, GPTQ and compressed-tensors in layers: the same weight stored in each way, whole and in shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.layers.awq import Awq
from threefold.layers.gptq import Gptq
from threefold.layers.linear import ColumnParallelLinear, RowParallelLinear
from threefold.layers.packed_int4 import PackedInt4Groups
from threefold.parallel import single_group

Ranks = Callable[[int], list[Any]]
CPU: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu"), "has_bias": False}
GROUP = 32


class Weight(NamedTuple):
    """What all forms hold."""

    values: torch.Tensor  # [out, in] 0..15
    scales: torch.Tensor  # [out, groups]
    zeros: torch.Tensor  # [out, groups] 0..15
    group_size: int

    @property
    def plain(self) -> torch.Tensor:
        each = (self.group_size or self.values.shape[1],)
        scales, zeros = (t.repeat_interleave(each[0], dim=1) for t in (self.scales, self.zeros))
        return (self.values - zeros) * scales


def weight(num_outputs: int, num_inputs: int, group_size: int = GROUP, zero: int | None = None) -> Weight:
    groups = num_inputs // (group_size or num_inputs)
    zeros = torch.randint(0, 16, (num_outputs, groups))
    return Weight(
        torch.randint(0, 16, (num_outputs, num_inputs)),
        torch.rand(num_outputs, groups) + 0.5,
        zeros if zero is None else torch.full_like(zeros, zero),
        group_size,
    )


def words(numbers: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """[..., 8 n] -> int32 [..., n]; the i-th four bits from below are number order[i]."""
    eights = numbers.long().unflatten(-1, (-1, 8))
    packed = sum(eights[..., number] << (4 * place) for place, number in enumerate(order))
    return (packed - (packed >> 31 << 32)).to(torch.int32)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def as_awq(w: Weight) -> dict[str, torch.Tensor]:
    return {
        "qweight": words(w.values.T, AWQ_ORDER),
        "qzeros": words(w.zeros.T, AWQ_ORDER),
        "scales": w.scales.T.contiguous(),
    }


def as_gptq(w: Weight, offset: int = 1) -> dict[str, torch.Tensor]:
    return {
        "qweight": words(w.values).T.contiguous(),
        "qzeros": words((w.zeros.T - offset) & 15),
        "scales": w.scales.T.contiguous(),
        "g_idx": (torch.arange(w.values.shape[1]) // (w.group_size or w.values.shape[1])).to(torch.int32),
    }


def as_compressed(w: Weight) -> dict[str, torch.Tensor]:
    return {
        "weight_packed": words(w.values),
        "weight_scale": w.scales,
        "weight_zero_point": words(w.zeros.T).T.contiguous(),
    }


def scheme_and_tensors(kind: str, w: Weight) -> tuple[Any, dict[str, torch.Tensor]]:
    if kind == "awq":
        return Awq(w.group_size), as_awq(w)
    if kind == "gptq":
        return Gptq(w.group_size, has_input_order=True, zero_offset=1), as_gptq(w)
    if kind == "gptq_v2":
        return Gptq(w.group_size, has_input_order=True, zero_offset=0), as_gptq(w, offset=0)
    return PackedInt4Groups(w.group_size, has_zero_points=True), as_compressed(w)


KINDS = ("awq", "gptq", "gptq_v2", "compressed-tensors")


def column(kind: str, parts: dict[str, Weight], group: Any = None, **more: Any) -> ColumnParallelLinear:
    scheme = scheme_and_tensors(kind, next(iter(parts.values())))[0]
    sizes = {name: w.values.shape[0] for name, w in parts.items()}
    num_inputs = next(iter(parts.values())).values.shape[1]
    layer = ColumnParallelLinear(sizes, num_inputs, group=group or single_group(), scheme=scheme, **CPU | more)
    for name, w in parts.items():
        for tensor_kind, tensor in scheme_and_tensors(kind, w)[1].items():
            layer.load(name, tensor_kind, tensor)
    return layer


def row(kind: str, w: Weight, group: Any) -> RowParallelLinear:
    scheme, tensors = scheme_and_tensors(kind, w)
    layer = RowParallelLinear("o", w.values.shape[1], w.values.shape[0], group=group, scheme=scheme, **CPU)
    for tensor_kind, tensor in tensors.items():
        layer.load("o", tensor_kind, tensor)
    return layer


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("group_size", [GROUP, 64, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_parts_stand_one_behind_another(kind: str, group_size: int) -> None:
    a, b, x = weight(16, 128, group_size), weight(8, 128, group_size), torch.randn(3, 128)

    layer = column(kind, {"a": a, "b": b})

    assert layer.missing == []
    torch.testing.assert_close(layer(x), torch.cat([x @ a.plain.T, x @ b.plain.T], dim=1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_gated(kind: str) -> None:
    gate, up, x = weight(16, 64), weight(16, 64), torch.randn(3, 64) / 30

    got = column(kind, {"gate": gate, "up": up}, is_gated=True)(x)

    right = torch.nn.functional.silu(x @ gate.plain.T) * (x @ up.plain.T)
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_is_right_to_its_own_rounding(kind: str) -> None:
    w, x = weight(64, 256), torch.randn(5, 256).bfloat16()

    got = column(kind, {"a": w}, dtype=torch.bfloat16)(x)

    right = x.float() @ w.plain.T
    assert (got.float() - right).norm() <= 2e-2 * right.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_of_columns_have_half_of_each_part(kind: str, ranks: Ranks) -> None:
    a, b, x = weight(32, 64), weight(16, 64), torch.randn(3, 64)

    outputs = [column(kind, {"a": a, "b": b}, group)(x) for group in ranks(2)]

    torch.testing.assert_close(torch.cat([out[:, :16] for out in outputs], dim=1), x @ a.plain.T, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(torch.cat([out[:, 16:] for out in outputs], dim=1), x @ b.plain.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("group_size", [GROUP, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_of_rows_sum_up(kind: str, group_size: int, ranks: Ranks) -> None:
    w, x = weight(16, 128, group_size), torch.randn(3, 128)

    total = sum(row(kind, w, group)(x[:, 64 * group.rank :][:, :64]) for group in ranks(2))

    torch.testing.assert_close(total, x @ w.plain.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_is_never_cut_between_ranks(kind: str, ranks: Ranks) -> None:
    with pytest.raises(ModelLoadError, match=r"for 64 inputs at a time.* 96 inputs on each of 2 ranks"):
        row(kind, weight(16, 192, 64), ranks(2)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_never_cut_between_ranks(kind: str, ranks: Ranks) -> None:
    with pytest.raises(ModelLoadError, match=r"for 8 outputs at a time.* 12 outputs on each of 2 ranks"):
        column(kind, {"a": weight(24, 64)}, ranks(2)[0])


def test_groups_that_do_not_divide_the_inputs() -> None:
    w = weight(8, 128, 64)
    tensors = {kind: tensor[:12] if kind == "qweight" else tensor for kind, tensor in as_gptq(w).items()}
    layer = RowParallelLinear("o", 96, 8, group=single_group(), scheme=Gptq(64, False, 1), **CPU)
    layer.load("o", "qweight", tensors["qweight"])
    layer.load("o", "qzeros", tensors["qzeros"])

    with pytest.raises(ModelLoadError, match="groups of 64 do not divide 96 inputs"):
        layer.load("o", "scales", tensors["scales"])


@pytest.mark.parametrize(("group_size", "first"), [(32, 5), (0, 1)])
def test_inputs_in_an_order_of_their_own(group_size: int, first: int) -> None:
    w = weight(8, 64, group_size)
    scheme, tensors = scheme_and_tensors("gptq", w)
    tensors["g_idx"][first] += 1
    layer = RowParallelLinear("o", 64, 8, group=single_group(), scheme=scheme, **CPU)

    with pytest.raises(ModelLoadError, match="order of their own \\(desc_act\\), which is not built"):
        for kind, tensor in tensors.items():
            layer.load("o", kind, tensor)


def test_compressed_tensors_names_its_own_order() -> None:
    scheme = PackedInt4Groups(GROUP, has_zero_points=True, has_input_order=True)
    layer = RowParallelLinear("o", 64, 8, group=single_group(), scheme=scheme, **CPU)
    tensors = as_compressed(weight(8, 64)) | {"weight_g_idx": torch.arange(64, dtype=torch.int32) % 2}

    with pytest.raises(ModelLoadError, match="actorder"):
        for kind, tensor in tensors.items():
            layer.load("o", kind, tensor)


@pytest.mark.parametrize("kind", ["awq", "compressed-tensors"])
def test_symmetric_weights_have_no_zeros(kind: str) -> None:
    w, x = weight(16, 64, zero=8), torch.randn(3, 64)
    scheme = Awq(GROUP, has_zero_points=False) if kind == "awq" else PackedInt4Groups(GROUP)
    layer = RowParallelLinear("o", 64, 16, group=single_group(), scheme=scheme, **CPU)

    for tensor_kind in layer.missing:
        tensor_kind = tensor_kind.removeprefix("o.")
        layer.load("o", tensor_kind, scheme_and_tensors(kind, w)[1][tensor_kind])

    torch.testing.assert_close(layer(x), x @ w.plain.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_are_planned_at_a_third_of_bf16(kind: str) -> None:
    scheme = scheme_and_tensors(kind, weight(8, 128, 128))[0]

    on_card = scheme.kept_bytes(4096, 4096, torch.bfloat16, torch.device("cuda"))

    assert on_card == pytest.approx(0.266 * 4096 * 4096 * 2, rel=0.01)
