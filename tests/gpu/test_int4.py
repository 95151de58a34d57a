"""Products with packed 4-bit weights on a card against float32: every body, eager and in a graph."""

from __future__ import annotations

import pytest
import torch

from threefold.kernels.int4 import Int4Weight, dequantize, int4_product, int4_product_reference, pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")]
CARD = torch.device("cuda")
BOUNDS = {torch.bfloat16: 8e-3, torch.float16: 2e-3}


def random_weight(num_outputs: int, num_inputs: int, group_size: int) -> Int4Weight:
    torch.manual_seed(num_outputs + num_inputs)
    groups = num_inputs // group_size
    return Int4Weight(
        torch.randint(0, 16, (num_outputs, num_inputs), dtype=torch.uint8, device=CARD),
        ((torch.rand(num_outputs, groups, device=CARD) + 0.5) / 5 / num_inputs**0.5).half(),
        torch.randint(0, 17, (num_outputs, groups), dtype=torch.uint8, device=CARD),
        group_size,
    )


@pytest.mark.parametrize("num_tokens", [1, 17, 100, 256, 700])
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs", "group_size"),
    [(1024, 12288, 128), (3072, 576, 64), (48, 1504, 32), (100, 1536, 1536)],
)
@pytest.mark.parametrize(
    ("dtype", "has_bias", "is_gated"),
    [(torch.bfloat16, False, False), (torch.bfloat16, True, True), (torch.float16, True, False)],
)
def test_product(
    dtype: torch.dtype, has_bias: bool, is_gated: bool, num_outputs: int, num_inputs: int, group_size: int,
    num_tokens: int,
) -> None:  # fmt: skip
    weight = random_weight(num_outputs, num_inputs, group_size)
    bias = torch.randn(num_outputs, device=CARD).to(dtype) if has_bias else None
    x = torch.randn(num_tokens, num_inputs, device=CARD).to(dtype)
    right = int4_product_reference(x, weight, bias, is_gated=is_gated)

    got = int4_product(weight, bias, is_gated=is_gated, dtype=dtype)(x)

    assert got.shape == right.shape
    assert ((got.float() - right).norm() / right.norm()).item() < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", list(BOUNDS))
def test_pieces_are_the_weight(dtype: torch.dtype) -> None:
    from threefold.kernels.triton.int4_dequantize import dequantize_piece

    weight = random_weight(512, 1024, 128)
    piece = torch.empty((200, 1024), dtype=dtype, device=CARD)

    dequantize_piece(pack(weight, dtype), 100, piece)

    torch.testing.assert_close(piece.float(), dequantize(weight)[100:300], rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize("num_tokens", [1, 64, 256, 1024])
def test_a_graph_gives_the_same(num_tokens: int) -> None:
    weight = random_weight(4096, 4096, 128)
    multiply = int4_product(weight, None, is_gated=True, dtype=torch.bfloat16)
    x = torch.randn(num_tokens, 4096, device=CARD, dtype=torch.bfloat16)
    eager = multiply(x)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = multiply(x)
    for _ in range(3):
        graph.replay()

    assert torch.equal(captured, eager)


@pytest.mark.parametrize("num_tokens", [1, 64, 256])
def test_a_token_has_one_result_whoever_is_beside_it(num_tokens: int) -> None:
    multiply = int4_product(random_weight(1024, 4096, 128), None, dtype=torch.bfloat16)
    x = torch.randn(num_tokens, 4096, device=CARD, dtype=torch.bfloat16)
    others = torch.cat([x[:1], torch.randn_like(x)[1:]])

    assert torch.equal(multiply(x)[0], multiply(others)[0])


@pytest.mark.parametrize("num_outputs", [1024, 4096])
def test_few_tokens_are_summed_in_one_order(num_outputs: int) -> None:
    from threefold.kernels.triton.int4_tables import MAX_FEW_TOKENS

    multiply = int4_product(random_weight(num_outputs, 4096, 128), None, dtype=torch.bfloat16)
    x = torch.randn(MAX_FEW_TOKENS, 4096, device=CARD, dtype=torch.bfloat16)
    alone = multiply(x[:1])

    assert all(torch.equal(multiply(x[:num])[:1], alone) for num in (2, 9, 17, MAX_FEW_TOKENS))
