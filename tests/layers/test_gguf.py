"""Packed weights as layers have them: what is stored, what products and tables give, what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from threefold.errors import ModelLoadError
from threefold.kernels.packed import has_packed_products, packed_reference
from threefold.layers.embedding import OutputHead, VocabParallelEmbedding, Vocabulary
from threefold.layers.gguf import PACKINGS, GgufScheme, PackedTable, common_packing
from threefold.layers.linear import ColumnParallelLinear, RowParallelLinear
from threefold.parallel import single_group

CPU = torch.device("cpu")
BF16: dict[str, Any] = {"dtype": torch.bfloat16, "device": CPU}
NEEDS_PACKED = pytest.mark.skipif(not has_packed_products(torch.bfloat16, CPU), reason="no packed products here")


def stored(packing: str, out: int, width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for kind, form in GgufScheme(packing).stored.items():
        shape = form.shape(out, width)
        if kind == "numbers":
            tensors[kind] = torch.randint(0, 1 << PACKINGS[packing].bits, shape, dtype=torch.uint8, generator=generator)
        else:
            tensors[kind] = torch.rand(shape, generator=generator).div(16).half()
    return tensors


def test_what_is_stored() -> None:
    assert {kind: form.shape(64, 96) for kind, form in GgufScheme("Q4_1").stored.items()} == {
        "numbers": (64, 96),
        "scales": (64, 3),
        "minima": (64, 3),
    }
    assert list(GgufScheme("Q8_0").stored) == ["numbers", "scales"]


@pytest.mark.parametrize(
    ("packings", "common"),
    [
        (["Q4_0", "Q4_0"], "Q4_0"),
        (["Q4_0", "Q4_1"], "Q4_1"),
        (["Q4_0", "Q8_0"], "Q5_1"),
        (["Q5_0"], "Q5_0"),
        (["Q5_0", "Q5_1", "Q4_1"], "Q5_1"),
    ],
)
def test_a_packing_for_several(packings: list[str], common: str) -> None:
    assert common_packing(packings) == common


@pytest.mark.parametrize("packing", PACKINGS)
def test_kept_bytes_are_those_of_the_weight(packing: str) -> None:
    scheme = GgufScheme(packing)
    weight = scheme.weight(stored(packing, 64, 96))
    assert scheme.kept_bytes(64, 96, torch.bfloat16, CPU) == weight.records.numel()


@NEEDS_PACKED
@pytest.mark.parametrize("packing", PACKINGS)
def test_fused_parts_are_one_product(packing: str) -> None:
    scheme = GgufScheme(packing)
    layer = ColumnParallelLinear(
        {"q_proj": 64, "k_proj": 32}, 96, has_bias=True, group=single_group(), scheme=scheme, **BF16
    )
    parts = {"q_proj": stored(packing, 64, 96, 1), "k_proj": stored(packing, 32, 96, 2)}
    bias = {"q_proj": torch.randn(64), "k_proj": torch.randn(32)}
    for part, tensors in parts.items():
        for kind, tensor in (tensors | {"bias": bias[part]}).items():
            layer.load(part, kind, tensor)
    x = torch.randn(5, 96).bfloat16()

    got = layer(x).float()

    expected = torch.cat(
        [packed_reference(x, scheme.weight(parts[part]), bias[part].bfloat16()) for part in parts], dim=1
    )
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)


@NEEDS_PACKED
def test_ranks_share_the_inputs(ranks: Callable[[int], list[Any]]) -> None:
    tensors, x = stored("Q4_1", 32, 128), torch.randn(3, 128).bfloat16()
    total = torch.zeros(3, 32)
    for group in ranks(2):
        layer = RowParallelLinear("o_proj", 128, 32, has_bias=False, group=group, scheme=GgufScheme("Q4_1"), **BF16)
        for kind, tensor in tensors.items():
            layer.load("o_proj", kind, tensor)
        total += layer(x[:, group.rank * 64 : group.rank * 64 + 64])

    expected = packed_reference(x, GgufScheme("Q4_1").weight(tensors))
    torch.testing.assert_close(total, expected, rtol=2e-2, atol=2e-2)


def test_a_share_that_cuts_records_is_refused(ranks: Callable[[int], list[Any]]) -> None:
    layer = ColumnParallelLinear(
        {"up_proj": 96}, 64, has_bias=False, group=ranks(2)[0], scheme=GgufScheme("Q8_0"), **BF16
    )
    layer.load("up_proj", "numbers", stored("Q8_0", 96, 64)["numbers"])

    with pytest.raises(ModelLoadError, match=r"multiples of 32 outputs .* here are 48 and 64; take fewer ranks"):
        layer.load("up_proj", "scales", stored("Q8_0", 96, 64)["scales"])


@NEEDS_PACKED
def test_a_tied_head_multiplies_with_the_packed_embedding() -> None:
    vocabulary = Vocabulary(96, 64, group=single_group(), **BF16)
    embedding = VocabParallelEmbedding(vocabulary, GgufScheme("Q8_0"))
    tensors = stored("Q8_0", 96, 64)
    embedding.load(tensors["numbers"], "numbers")
    assert embedding.table is None
    embedding.load(tensors["scales"], "scales")
    head = OutputHead(vocabulary)
    head.tie(embedding)
    weight, hidden = GgufScheme("Q8_0").weight(tensors), torch.randn(4, 64).bfloat16()

    rows, logits = embedding(torch.tensor([95, 0, 40])), head(hidden)

    assert isinstance(embedding.table, PackedTable)
    assert torch.equal(rows, weight.rows(torch.tensor([95, 0, 40])).bfloat16())
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, packed_reference(hidden, weight), rtol=1e-5, atol=1e-5)
    out = torch.empty(4, 96)
    assert torch.equal(head(hidden, out), logits)


@NEEDS_PACKED
def test_a_packed_embedding_is_shared_by_ranks(ranks: Callable[[int], list[Any]]) -> None:
    tensors, ids = stored("Q4_0", 64, 32), torch.tensor([63, 0, 31, 32])
    rows = torch.zeros(4, 32)
    for group in ranks(2):
        embedding = VocabParallelEmbedding(Vocabulary(64, 32, group=group, **BF16), GgufScheme("Q4_0"))
        for kind, tensor in tensors.items():
            embedding.load(tensor, kind)
        rows += embedding(ids)

    assert torch.equal(rows, GgufScheme("Q4_0").weight(tensors).rows(ids).bfloat16().float())


def test_tensors_that_an_embedding_does_not_wait_for() -> None:
    embedding = VocabParallelEmbedding(Vocabulary(64, 32, group=single_group(), **BF16))
    with pytest.raises(ModelLoadError, match="has weight and no numbers"):
        embedding.load(torch.zeros(64, 32), "numbers")
    embedding.load(torch.zeros(64, 32))
    with pytest.raises(ModelLoadError, match="came twice"):
        embedding.load(torch.zeros(64, 32))
